"""The command line: what is chosen, and what is refused in which words."""

import pytest

from benchmarks.options import HIDDEN, NAMES, parse, parse_peers
from benchmarks.subjects import PEERS


def test_without_arguments_everything_is_measured_except_overlap() -> None:
    options = parse([])
    assert options.cases == tuple(name for name in NAMES if name not in HIDDEN)
    assert options.peers == PEERS
    assert (options.settings.rounds, options.settings.turn, options.precisions) == (5, None, None)


def test_words_choose_by_their_beginning() -> None:
    options = parse(["lenet", "scaling", "--subjects", "torch-e,jax", "--precision", "bfloat16", "--phases", "step"])
    assert options.cases == ("lenet", "lenet_b1", "scaling/resnet20", "scaling/cifar_convnet")
    assert [peer.name for peer in options.peers] == ["torch-eager", "jax-nchw", "jax-nhwc"]
    assert (options.precisions, options.settings.phases) == (("bfloat16",), ("step",))
    assert parse(["smoke"]).cases == ("smoke",)
    assert parse(["smoke", "--subjects", "none"]).peers == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alexnot"], "CASE 'alexnot': no name begins so; there are alexnet, overfeat"),
        (["--subjects", "caffe"], "--subjects 'caffe': no name begins so; there are torch-eager"),
        (["--phases", "step,dance"], "--phases 'dance': expected some of forward, gradients, step"),
        (["--precision", "float16"], "--precision 'float16': expected some of float32, bfloat16"),
        (["--rounds", "0"], "argument --rounds: 0: expected 1 or more"),
    ],
)
def test_an_unknown_case_is_refused_with_the_known_ones(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_peers_are_all_or_those_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_peers([]) == ("torch", "jax", "mpi", "tensorflow")
    assert parse_peers(["jax"]) == ("jax",)
    with pytest.raises(SystemExit):
        parse_peers(["caffe"])
    assert "NAME 'caffe': expected some of torch, jax, mpi, tensorflow" in capsys.readouterr().err
