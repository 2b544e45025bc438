"""The import rule: imports have one direction and no cycles, and heavy libraries are imported only when needed.

The test reads the source and executes nothing. It fails for a module that no row of ``MAY_IMPORT`` covers.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "runner"

MAY_IMPORT = {
    # Modules that import at most ``errors``.
    "bounds": "",
    "fields": "",
    "callback": "",
    "errors": "",
    "system": "errors",
    # Arrays: NumPy, and no module of runner outside ``kernels`` but those that store compiled code. A reference kernel
    # registers itself.
    "kernels": "",
    "kernels.philox": "",
    "kernels.platform": "kernels.contract kernels.memory",
    "kernels.memory": "",
    "kernels.contract": "kernels.memory",
    "kernels.functions": "kernels.contract",
    "kernels.registry": "kernels.contract kernels.functions kernels.platform",
    "kernels.elementwise": "",
    "kernels.reference": "kernels.elementwise kernels.philox kernels.memory kernels.contract kernels.registry",
    # Fast kernels: a thin module over each library, and one module that tries to load them.
    "kernels.cpu": "",
    "kernels.cpu.dispatch": "kernels.contract",
    "kernels.cpu.onednn": "kernels.memory kernels.contract kernels.registry kernels.reference.rows"
    " kernels.cpu.dispatch",
    "kernels.cpu.machine_code": "kernels.contract kernels.memory kernels.functions kernels.registry kernels.elementwise"
    " kernels.reference.rows kernels.cpu.dispatch system.code_cache system.files",
    "kernels.cpu.loading": "kernels.registry kernels.cpu.onednn kernels.cpu.machine_code kernels.cpu.dispatch",
    # Kernels of a GPU: they use CUDA through one protocol, except for the module that implements it.
    "kernels.gpu": "kernels.memory kernels.contract kernels.functions kernels.registry kernels.platform"
    " kernels.elementwise kernels.philox system.code_cache",
    # The engine: a folder imports only folders that are inside it or listed above it. A graph describes the
    # computation, and a plan describes its execution.
    "engine": "",
    "engine.graph": "errors kernels.elementwise system.schema",
    "engine.events": "",
    "engine.compile": "engine.graph errors kernels.contract kernels.registry kernels.memory kernels.elementwise",
    "engine.run": "engine.compile engine.graph errors system.schema kernels.contract kernels.registry kernels.memory"
    " kernels.platform kernels.philox",
    "engine.run.kernel_table": "engine.graph errors kernels.contract kernels.functions kernels.cpu.loading"
    " kernels.gpu.cuda kernels.gpu.described kernels.gpu.loading kernels.reference kernels.registry",
    "engine.simulate": "engine.compile engine.events engine.graph engine.run.recording"
    " engine.run.step_driver engine.run.timeline bounds errors system.schema"
    " kernels.contract kernels.philox kernels.registry",
    "engine.cluster": "engine.run engine.compile engine.graph engine.cluster.transport errors system.schema"
    " system.machine system.redaction system.text kernels.contract kernels.registry kernels.platform",
    "engine.cluster.transport": "errors system.schema system.text",
    # Networks and training rules. Strategies read the layers recorded on nodes; they use no models, data or tracking.
    "nn": "engine errors",
    "models": "nn engine bounds errors",
    "tasks": "models nn fields engine bounds errors",
    "optimizers": "engine bounds errors system.schema",
    "strategies": "optimizers fields engine bounds errors records.decisions",
    # Input data and stored results. Loops over pixels are compiled.
    "data": "bounds fields errors system.files system.json_file system.record_framing system.schema kernels.philox"
    " kernels.cpu.loading kernels.cpu.machine_code.colours kernels.cpu.machine_code.resizing",
    "checkpoint": "errors system.files system.json_file system.schema system.text",
    "tracking": "bounds system.files system.redaction system.json_file system.record_framing system.schema",
    "tracing": "engine errors system.files",
    "records": "errors system.files system.json_file system.schema engine tracking system.machine system.redaction"
    " records.data_facts config.safe_yaml",
    "records.decisions": "system.files system.json_file system.schema",
    "records.data_facts": "data fields errors system.json_file system.redaction system.schema tracking.records",
    # Plugins: files of the user that add models, optimizers, strategies and data sets.
    "plugin": "callback tasks models optimizers strategies data engine kernels.contract errors system.files",
    # The configuration consists of the dataclasses of the packages that it configures.
    "config": "bounds errors system.files engine.graph.device engine.simulate.hardware",
    "config.check": "config.monitor config.schema errors engine.graph.device strategies.base tracking.base",
    "config.groups": "config tasks models optimizers strategies data tracking",
    "config.error_text": "callback config config.groups",
    "config.configuration": "callback config config.error_text config.groups data bounds errors kernels.gpu.discovery",
    "config.outcome": "bounds config config.configuration config.groups data.settings engine.graph.device"
    " system.redaction",
    "config.devices": "kernels.gpu.driver config.schema errors engine.graph.device"
    " kernels.gpu.discovery system.machine",
    "config.monitor": "config.schema tasks engine.graph.network errors",
    "config.hydra_app": "config config.configuration config.error_text config.groups config.hydra_sweep"
    " config.shared_choices errors",
    "config.hydra_sweep": "config.batch_sweeper config.launcher config.monitor config.shared_choices errors"
    " system.redaction",
    "config.shared_choices": "",
    # Training. Only ``build`` connects the parts.
    "training": "callback system.console config config.configuration records strategies optimizers tasks fields data"
    " models"
    " checkpoint tracking tracing plugin engine errors system.files system.json_file system.schema system.shutdown"
    " system.machine system.redaction system.slurm system.text"
    " kernels.gpu.discovery kernels.gpu.driver kernels.registry",
    # Commands.
    "sweeps": "tasks config config.configuration config.devices config.hydra_app system.console records"
    " tracking system.files system.json_file system.schema errors system.redaction system.text",
    "sweeps.frozen_job": "sweeps config config.configuration config.devices engine.graph.device system.console"
    " system.machine records errors kernels.gpu.discovery",
    "tables": "sweeps training config config.configuration config.outcome records checkpoint data tracking"
    " system.json_file system.files system.machine system.redaction system.schema system.text errors",
    "commands": "callback training tracing.parts sweeps tables config config.groups config.configuration"
    " config.hydra_app config.hydra_sweep records checkpoint tasks optimizers engine data tracking plugin"
    " system.console system.machine system.files errors system.redaction system.slurm system.text"
    " kernels.gpu.discovery kernels.gpu.driver",
    # The interface for Python, on the level of the command line. `import runner` imports nothing of it at its start.
    "api": "callback commands sweeps training config config.groups config.configuration config.hydra_app data"
    " checkpoint plugin records tracking system.machine system.files errors engine kernels.elementwise",
    "testing": "tasks fields models optimizers strategies engine errors",
    "cli": "commands config records system.console data plugin errors engine.cluster.processes"
    " engine.cluster.worker_process",
    "__main__": "cli",
    "": "api nn testing data.settings tasks models.base optimizers.base optimizers.schedules plugin callback errors",
}
"""Module or package below ``runner`` -> the modules it may import besides itself. The longest matching name applies."""

HEAVY = {
    "IPython",
    "alembic",
    "matplotlib",
    "mlflow",
    "onnx",
    "pandas",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "tensorboardX",
    "torch",
}
"""Libraries that are imported only inside functions, so that ``runner --help`` answers in less than a second."""

ONLY_IN = {
    "hydra": "config.hydra_app config.hydra_sweep config.batch_sweeper config.shared_choices",
    "omegaconf": "config",
    "mlflow": "tracking",
    "matplotlib": "tracking",
    "sklearn": "data",
    "PIL": "data",
    "cffi": "kernels.cpu",
    "cupy": "kernels.gpu.cuda kernels.gpu.collective",
    "cupy_backends": "kernels.gpu.cublas kernels.gpu.nvrtc",
    "cudnn": "kernels.gpu.cudnn",
    "numba": "engine.events",
    "llvmlite": "kernels.cpu.loading kernels.cpu.machine_code",
    "zmq": "engine.cluster.transport commands.doctor",
    "msgpack": "engine.cluster.transport",
    "safetensors": "checkpoint data.records",
    "google": "data.records",
    "onnx": "api.onnx_file",
    "ray": "engine.cluster.ray_program",
    "torch": "api.weights",
    "tensorboardX": "tracking",
    "pickle": "",
    "marshal": "",
    "shelve": "",
}
"""Library -> the only packages that may import it; an empty string if none may."""


@dataclass(frozen=True)
class Import:
    """The import of one module by another. at_start: whether it is executed when the importer is imported."""

    importer: str
    target: str
    at_start: bool

    def __str__(self) -> str:
        return f"{self.importer or 'runner'} -> {self.target}"


def below(name: str, room: str) -> bool:
    """Return whether ``name`` is the package ``room`` or is inside it. The room "" contains every name."""
    return name == room or name.startswith(f"{room}.") or room == ""


def modules(source: Path) -> dict[str, Path]:
    """Return a dict from the dotted name of each module in a package, "" for the package itself, to its path."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: Path) -> list[Import]:
    """Return every import of every module. Targets inside the package are written ``runner.NAME``."""
    known = modules(source)
    return [
        Import(importer, target, at_start)
        for importer, path in known.items()
        for statement, at_start in statements(ast.parse(path.read_text(), path))
        for target in targets(statement, known)
    ]


def statements(tree: ast.AST, at_start: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield each import statement, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_start
        called = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        only_checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        yield from statements(child, at_start and not called and not only_checked)


def targets(statement: ast.stmt, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the imported modules: ``from runner.engine.graph import ops`` imports ``runner.engine.graph.ops``."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        assert statement.level == 0, "relative imports are not used: an absolute import names the package"
        base = statement.module or ""
        for alias in statement.names:
            inner = f"{base}.{alias.name}".removeprefix("runner.")
            yield f"{base}.{alias.name}" if below(base, "runner") and inner in known else base


def room_of(name: str) -> str:
    """Return the longest name in ``MAY_IMPORT`` that matches a module; fail if there is none."""
    rows = [row for row in MAY_IMPORT if row and below(name, row)] if name else [""]
    assert rows, f"module {name!r} is not in the table MAY_IMPORT: add a row with the modules it may import"
    return max(rows, key=len)


def inside(found: list[Import]) -> list[tuple[str, str]]:
    """Return importer and target of every import inside the package, including lazy and type-only imports."""
    return [
        (each.importer, each.target.removeprefix("runner").lstrip("."))
        for each in found
        if below(each.target, "runner")
    ]


def breaches(found: list[Import]) -> list[str]:
    """Return the imports inside the package that the table does not allow."""
    rooms = [(importer, target, room_of(importer)) for importer, target in inside(found)]
    return [
        f"{importer or 'runner'} -> {target}: {room or 'runner'} may import {MAY_IMPORT[room] or 'nothing'}"
        for importer, target, room in rooms
        if room != room_of(target) and not any(below(target, row) for row in MAY_IMPORT[room].split())
    ]


def between_folders(found: list[Import], source: Path) -> list[tuple[str, str]]:
    """Return the imports between folders, without imports between a folder and a folder inside it."""
    folders = {name: ".".join(path.parent.relative_to(source).parts) for name, path in modules(source).items()}
    pairs = [(folders[importer], folders.get(target, target)) for importer, target in inside(found)]
    return [(a, b) for a, b in pairs if a and b and not below(a, b) and not below(b, a)]


def cycle(imports: list[tuple[str, str]]) -> list[str]:
    """Return names that import each other in a cycle, or an empty list."""
    edges: dict[str, list[str]] = {}
    for importer, target in imports:
        edges.setdefault(importer, []).append(target)
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        for target in [] if name in finished else edges.get(name, []):
            if circle := visit(target, [*path, name]):
                return circle
        finished.add(name)
        return []

    return next((circle for name in edges if (circle := visit(name, []))), [])


def too_early(found: list[Import]) -> list[str]:
    """Return the imports of heavy libraries that are executed when the importer is imported."""
    return [str(each) for each in found if each.at_start and each.target.split(".")[0] in HEAVY]


def strangers(found: list[Import]) -> list[str]:
    """Return the imports of restricted libraries by packages that may not import them."""
    return [
        str(each)
        for each in found
        if (library := each.target.split(".")[0]) in ONLY_IN
        and not any(below(each.importer, room) for room in ONLY_IN[library].split())
    ]


@pytest.fixture(scope="module")
def found() -> list[Import]:
    """Return every import of runner."""
    return imports(SOURCE)


def test_imports_have_one_direction(found: list[Import]) -> None:
    assert breaches(found) == []


def test_no_module_and_no_folder_is_in_an_import_cycle(found: list[Import]) -> None:
    assert cycle(inside(found)) == []
    assert cycle(between_folders(found, SOURCE)) == []


def test_heavy_libraries_are_imported_only_inside_functions(found: list[Import]) -> None:
    assert too_early(found) == []


def test_libraries_are_imported_only_by_their_packages(found: list[Import]) -> None:
    assert strangers(found) == []


MANY = 5
"""A folder with this many files, without its ``__init__``, needs a reading order."""


def test_a_folder_of_many_files_gives_a_reading_order() -> None:
    for folder in {path.parent for path in modules(SOURCE).values()} - {SOURCE}:
        names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        if len(names) >= MANY:
            order = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
            assert "Read " in order, folder
            missing = {name for name in names if f"``{name}``" not in order}
            assert not missing or "every other file" in order, f"{folder}: {missing}"


def test_every_module_is_in_the_table_and_every_row_exists() -> None:
    found = modules(SOURCE)
    assert {room_of(name) for name in found} == set(MAY_IMPORT)
    for row in MAY_IMPORT.values():
        assert set(row.split()) <= set(found)


def package(folder: Path, **files: str) -> list[Import]:
    """Write a package of these modules (``a__b`` is a/b.py) and return its imports."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/') if not name.startswith('__') else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return imports(folder)


@pytest.mark.parametrize(
    ("module", "text", "count"),
    [
        ("kernels__registry", "from runner.errors import RunnerError", 1),
        ("kernels__philox", "from runner.kernels.reference import linear", 1),
        ("engine__graph__graph", "from runner.kernels.reference.arithmetic import matmul", 1),
        ("engine__run__session", "def f():\n    import runner.kernels.reference", 1),
        ("engine__cluster__worker", "from runner.data import DATASETS", 1),
        ("strategies__single", "from runner.models.lenet import LeNet", 1),
        ("optimizers__sgd", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from runner import nn", 1),
        ("tracking__writer", "from runner.errors import RunnerError", 1),
        ("errors", "import runner.system.files", 1),
        ("data__source", "from runner.engine.compile.program import InputSource", 1),
        ("data__source", "from runner.errors import DataError\nfrom runner.data import dataset\nimport numpy", 0),
    ],
)
def test_an_import_against_the_rule_is_found(tmp_path: Path, module: str, text: str, count: int) -> None:
    known = dict.fromkeys(("errors", "system__files", "nn", "data__dataset", "kernels__reference"), "")
    assert len(breaches(package(tmp_path, **{**known, module: text}))) == count


@pytest.mark.parametrize("indent", ["", "def f():\n    ", "if TYPE_CHECKING:\n    "])
def test_a_cycle_is_found(tmp_path: Path, indent: str) -> None:
    found = package(tmp_path, engine__a="import runner.engine.b", engine__b=f"{indent}from runner.engine import a")
    assert cycle(inside(found)) == ["engine.a", "engine.b", "engine.a"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a__x": "import runner.b.y", "a__z": "", "b__y": "", "b__w": "import runner.a.z"}, ["a", "b", "a"]),
        ({"a__x": "import runner.a.b.y", "a__b__y": "import runner.a.z", "a__z": ""}, []),
    ],
    ids=["two folders", "one inside the other"],
)
def test_a_cycle_of_folders_is_found(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    found = package(tmp_path, **files)
    assert cycle(inside(found)) == []
    assert cycle(between_folders(found, tmp_path)) == expected


def test_a_heavy_import_at_module_level_and_a_library_in_another_package_are_found(tmp_path: Path) -> None:
    early = "try:\n    import sklearn.datasets\nexcept ImportError:\n    pass\nclass A:\n    from rich import box"
    late = "def f():\n    from hydra import compose\n    import torch"
    found = package(tmp_path, data__digits=early, api__weights=late, errors="import pickle")
    assert too_early(found) == ["data.digits -> sklearn.datasets", "data.digits -> rich"]
    assert strangers(found) == ["api.weights -> hydra", "errors -> pickle"]


def test_a_module_that_the_table_does_not_list_is_named() -> None:
    with pytest.raises(AssertionError, match="module 'newcomer' is not in the table MAY_IMPORT"):
        room_of("newcomer")
