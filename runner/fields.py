"""The fields of an example, which a dataset provides, a pipeline feeds and a network reads."""

from dataclasses import dataclass

LABEL = "int64"
"""The dtype of labels."""

BEGINS = "begins"
"""The field of examples that continue each other: () int64, 1 for an example that does not continue the previous one.

In a batch, the field is 1 for an example that does not continue the example in its row of the previous batch."""


@dataclass(frozen=True)
class Field:
    """A field of an example, such as its input x or its target y.

    shape: without the axis of examples. dtype: None for floats, whose dtype the precision of a run decides. names: the
    names of the classes if the field is a label, or of the K numbers if the shape is (K,); () if there are no names.
    counts: number of occurrences of each named value in the training split; () if unknown.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype or 'float'}[{','.join(map(str, self.shape))}]"

    @property
    def is_label(self) -> bool:
        """Whether the field is the number of a class."""
        return self.dtype == LABEL and self.shape == () and bool(self.names)


def labelled(shape: tuple[int, ...], classes: tuple[str, ...] = ()) -> dict[str, Field]:
    """Return the fields of classified examples: inputs x of this shape, and a label y. classes: class names."""
    return {"x": Field(shape), "y": Field((), LABEL, classes)}
