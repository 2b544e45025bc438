"""Office-31, photographs of objects in three domains (Saenko et al. 2010), in the user's files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from runner.bounds import Bounds, Positive, Real
from runner.data.dataset import Facts
from runner.data.image_folder import ImageFolder, classes_in
from runner.errors import require_one_of

DOMAINS = {"amazon": 2817, "dslr": 498, "webcam": 795}
"""Domain -> number of images."""
CLASSES = (
    "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet "
    "headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer "
    "projector punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can"
)


@dataclass
class Office31(ImageFolder):
    """The user's copy of a domain of Office-31: PATH/DOMAIN/images/CLASS/*.jpg.

    domain: "amazon", "dslr" or "webcam". As in the standard protocol of unsupervised adaptation, all images of the
    domain are both the train and the test split: a target's labels are used for its scores only. Without a path, runs
    can be planned and explained. The other settings are those of :class:`~runner.data.image_folder.ImageFolder`.
    """

    name: str = "office31"
    domain: str = "amazon"
    size: Annotated[int, Bounds(1, 65_536)] = 224
    mean: list[Real] | None = field(default_factory=lambda: [0.485, 0.456, 0.406])
    std: list[Positive] | None = field(default_factory=lambda: [0.229, 0.224, 0.225])

    def __post_init__(self) -> None:
        require_one_of("data.domain", self.domain, DOMAINS)
        super().__post_init__()

    def published_facts(self) -> Facts:
        count = DOMAINS[self.domain]
        return Facts.labelled((self.channels, self.size, self.size), tuple(CLASSES.split()), count, count)

    def _layout(self) -> str:
        return f"{self.domain}/images/CLASS/IMAGE"

    def _listed(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        """Return class -> files of the domain, both as the train split and as the test split."""
        found = classes_in(Path(self.path) / self.domain / "images", self._layout())
        return found, found
