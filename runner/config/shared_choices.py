"""Composition of many configurations that differ in values: each choice of options is composed once.

Hydra first reads and merges the YAML files of the chosen options (GROUP=OPTION), and then sets single values
(KEY=VALUE). The first part takes most of the time, and is the same for runs that choose the same options.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict


class SharedChoices:
    """A composer of configurations that lets Hydra compose each choice of options only once.

    choose: function that composes a configuration from choices of options. is_group: whether a name names a group.
    """

    def __init__(self, choose: Callable[[list[str]], DictConfig], is_group: Callable[[str], bool]) -> None:
        self._choose = choose
        self._is_group = is_group
        self._chosen: dict[tuple[str, ...], DictConfig] = {}
        self._parsed: dict[str, Override] = {}

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the configuration that Hydra composes from ``overrides``. Raises the errors of Hydra."""
        parsed = [self.parsed(text) for text in overrides]
        values = [each for each in parsed if self._sets_value(each)]
        choices = tuple(text for text, each in zip(overrides, parsed, strict=True) if not self._sets_value(each))
        if choices not in self._chosen:
            self._chosen[choices] = self._choose(list(choices))
        composed = copy.deepcopy(self._chosen[choices])
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        return composed

    def parsed(self, text: str) -> Override:
        """Return an override that Hydra has parsed. Raises OverrideParseException."""
        if text not in self._parsed:
            [self._parsed[text]] = OverridesParser.create().parse_overrides([text])
        return self._parsed[text]

    def _sets_value(self, override: Override) -> bool:
        """Return whether an override sets a value after the composition, by the rule of Hydra's ``Overrides``.

        Settings of Hydra and sweeps over values count as choices, so that ``choose`` applies or refuses them.
        """
        if override.is_sweep_override() or override.is_hydra_override():
            return False
        return isinstance(override.value(), dict) or not self._is_group(override.key_or_group)


def composed_jobs(loader: Any, sweep: DictConfig) -> Callable[[Sequence[str]], DictConfig]:
    """Return a function that composes a job of a sweep from its overrides, as ``loader.load_sweep_config`` does.

    loader: Hydra's configuration loader. sweep: the composed configuration of the sweep.
    """
    settings = OmegaConf.to_container(sweep.hydra.overrides.hydra, resolve=False)
    _, repository = loader._parse_overrides_and_create_caching_repo(sweep.hydra.job.config_name, settings)
    shared = SharedChoices(lambda choices: loader.load_sweep_config(sweep, choices), repository.group_exists)

    def compose(overrides: Sequence[str]) -> DictConfig:
        job = shared.compose(overrides)
        own = [each for each in map(shared.parsed, overrides) if not each.is_hydra_override()]
        job.hydra.overrides.task = [each.input_line for each in own]
        form = job.hydra.job.config.override_dirname
        job.hydra.job.override_dirname = get_overrides_dirname(own, form.exclude_keys, form.item_sep, form.kv_sep)
        return job

    return compose


class RunLoader(ConfigLoaderImpl):
    """Hydra's loader without the settings of Hydra, which do not affect a run. It reads each YAML file once."""

    def __init__(self, places: ConfigSearchPath, config_name: str) -> None:
        """places: search path of YAML files. config_name: name of the primary file."""
        super().__init__(places)
        _, repository = self._parse_overrides_and_create_caching_repo(config_name, [])
        self.files = _RunFiles(repository)
        self._name = config_name
        self._single: dict[tuple[str | None, str | None], ConfigResult] = {}

    def choose(self, choices: list[str]) -> DictConfig:
        """Return the configuration with these choices of options. Raises the errors of Hydra."""
        parsed = OverridesParser.create().parse_overrides(choices)
        self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        if settings := [each.input_line for each in parsed if each.is_hydra_override()]:
            raise ConfigCompositionException(f"{settings[0]}: expected an override of a run, not a setting of Hydra")
        defaults = create_defaults_list(self.files, self._name, parsed, prepend_hydra=False, skip_missing=False)
        composed = self._compose_config_from_defaults_list(defaults.defaults, self.files)
        OmegaConf.set_struct(composed, True)
        return composed

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        place = (default.config_path, default.package)
        if place not in self._single:
            self._single[place] = super()._load_single_config(default, repo)
        found = copy.copy(self._single[place])
        # The composition moves the nodes of a file into the configuration.
        found.config = copy.deepcopy(found.config)
        return found


class _RunFiles(CachingConfigRepository):
    """A repository of YAML files that reads each file once and removes the settings of Hydra."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        found = super().load_config(config_path)
        if found is not None and isinstance(found.config, DictConfig) and "hydra" in found.config:
            with open_dict(found.config):
                del found.config["hydra"]
        if found is not None and found.defaults_list is not None:
            found.defaults_list = [each for each in found.defaults_list if not _chooses_for_hydra(each)]
        return found


def _chooses_for_hydra(default: InputDefault) -> bool:
    return isinstance(default, GroupDefault) and (default.group or "").lstrip("/").startswith("hydra/")
