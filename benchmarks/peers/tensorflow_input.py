"""Time tf.data: ``python -m benchmarks.peers.tensorflow_input FOLDER``; see :mod:`benchmarks.input`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from benchmarks.protocol import Run, serve

BATCH = 32
MEANS = (123.68, 116.779, 103.939)
ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)
CHANGES: Mapping[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "brightness": lambda image: tf.image.random_brightness(image, 32 / 255),
    "saturation": lambda image: tf.image.random_saturation(image, 0.5, 1.5),
    "hue": lambda image: tf.image.random_hue(image, 0.2),
    "contrast": lambda image: tf.image.random_contrast(image, 0.5, 1.5),
}


def encoded(record: tf.Tensor) -> tf.Tensor:
    """Return the JPEG file in a record."""
    features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    return tf.io.parse_single_example(record, features)["image/encoded"]


def vgg(content: tf.Tensor) -> tf.Tensor:
    """Return a random 224x224 crop of the image with a random shorter side, as TensorFlow's models do."""
    image = tf.cast(tf.io.decode_jpeg(content, channels=3), tf.float32)
    side = tf.cast(tf.random.uniform([], 256, 513, tf.int32), tf.float32)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    size = tf.cast(tf.round(size * side / tf.reduce_min(size)), tf.int32)
    image = tf.image.random_crop(tf.image.resize(image, size), (224, 224, 3))
    return tf.image.random_flip_left_right(image) - tf.constant(MEANS)


def inception(content: tf.Tensor) -> tf.Tensor:
    """Return a distorted image of 299x299; only the JPEG blocks of the crop are decoded."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(content),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 4 / 3),
        area_range=(0.05, 1.0),
        max_attempts=100,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    image = tf.image.resize(tf.image.decode_and_crop_jpeg(content, window, channels=3), (299, 299)) / 255
    image = tf.image.random_flip_left_right(image)
    order = tf.random.uniform([], 0, len(ORDERS), tf.int32)
    image = tf.switch_case(order, [lambda names=names: _distorted(image, names) for names in ORDERS])
    return (tf.clip_by_value(image, 0, 1) - 0.5) * 2


def _distorted(image: tf.Tensor, names: tuple[str, ...]) -> tf.Tensor:
    for name in names:
        image = CHANGES[name](image)
    return image


class TfData:
    """A tf.data pipeline on one thread."""

    versions: Mapping[str, str] = {"tensorflow": tf.__version__}

    def __init__(self, folder: Path) -> None:
        self._files = sorted(map(str, (folder / "records").glob("train-*")))

    def load(self) -> None:
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)

    def phase(self, name: str) -> Run:
        """Return a function that prepares the next batch of a phase."""
        data = tf.data.TFRecordDataset(self._files).repeat().map(encoded)
        if name == "decode":
            data = data.map(lambda content: tf.io.decode_jpeg(content, channels=3))
            images = iter(data)
            return lambda: sum(float(next(images)[0, 0, 0]) for _ in range(BATCH))
        data = data.shuffle(256).map({"vgg": vgg, "inception": inception}[name]).batch(BATCH)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        batches = iter(data.with_options(options))
        return lambda: float(next(batches)[0, 0, 0, 0])


if __name__ == "__main__":
    serve(TfData(Path(sys.argv[1])))
