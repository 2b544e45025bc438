"""Tiles of images for convolutions by minimal filtering (Winograd 1980; Lavin and Gray 2016, sections 4.1 and 4.3).

The results of an image are divided into tiles of 4x4, each of which depends on 6x6 pixels. In each direction, the 4
results are the transpose of a product of two polynomials, so 6 multiplications suffice: the 3 numbers of a filter are
evaluated at 6 points; pixels and products are transformed by the transposes of interpolation and evaluation. The
products are summed over the channels before their transform. A tile takes 36 multiplications per channel and filter; a
direct sum takes 144.

Memory, with blocks of the C channels that fill a vector: images (N, blocks, H, W, C); transformed tiles (36, blocks,
chunk, C); transformed filters (36, outer blocks, inner channels, C).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

from llvmlite import ir

from runner.kernels.cpu.machine_code.instructions import INDEX, STORED, Lanes, Value, element, repeat

DTYPE = "float32"
RESULTS = 4
"""Rows and columns of a tile."""

TAPS = 3
"""Rows and columns of a filter."""

POINTS = RESULTS + TAPS - 1
"""Number of points in each direction: 0, A, -A, B, -B and infinity; also the number of pixels."""

A, B = 0.625, 1.5
"""Points with smaller rounding errors than 1 and 2. The points and their squares are exact in float32."""

SIZES = (
    "inner",  # blocks of channels of the image
    "outer",  # blocks of channels of the result
    "height",  # of the image
    "width",
    "result_height",
    "result_width",
    "top",  # padding before the first row
    "left",
    "tile_rows",  # per image
    "tile_columns",
    "tiles",  # of all images
    "chunk",  # largest number of tiles that a worker processes at a time
    "share",  # largest number of tiles of a worker
    "workers",
)
"""The sizes of a convolution, in the order in which compiled functions receive them."""

_POINTER = ir.PointerType()
Square = Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Transforms:
    """Instructions for the transforms of one direction (Lavin and Gray 2016, equation 6)."""

    builder: ir.IRBuilder
    lanes: Lanes

    def transform_pixels(self, d: Sequence[Value]) -> list[Value]:
        """Return the transform of 6 pixels, B' d in the paper."""
        aa, bb = A * A, B * B
        first, last = (self._plus(self._plus(d[k + 4], -aa - bb, d[k + 2]), aa * bb, d[k]) for k in (0, 1))
        pairs = []
        for point, other in ((A, bb), (B, aa)):
            even, odd = (self._plus(d[k + 2], -other, d[k]) for k in (2, 1))
            pairs += self._sum_and_difference(even, self._times(point, odd))
        return [first, *pairs, last]

    def transform_filter(self, g: Sequence[Value]) -> list[Value]:
        """Return the transform of 3 or 4 numbers, G g: values at the points, divided by differences of points."""
        aa, bb = A * A, B * B
        values = [self._times(1 / (aa * bb), g[0])]
        for point, divisor in ((A, 2 * aa * (aa - bb)), (B, 2 * bb * (bb - aa))):
            square = point * point
            even = self._plus(g[0], square, g[2])
            odd = self._plus(g[1], square, g[3]) if len(g) > TAPS else g[1]
            values += self._sum_and_difference(self._times(1 / divisor, even), self._times(point / divisor, odd))
        return [*values, g[-1]]

    def transform_products(self, count: int, m: Sequence[Value]) -> list[Value]:
        """Return ``count`` results from 6 products m, A' m in the paper."""
        b = self.builder
        even = [b.fadd(m[k], m[k + 1]) for k in (1, 3)]
        odd = [b.fsub(m[k], m[k + 1]) for k in (1, 3)]
        results = []
        for power in range(count):
            at_a, at_b = odd if power % 2 else even
            results.append(self._plus(self._times(A**power, at_a), B**power, at_b))
        results[0] = b.fadd(results[0], m[0])
        results[-1] = b.fadd(results[-1], m[-1])
        return results

    def _plus(self, x: Value, factor: float, y: Value) -> Value:
        """Return x + factor * y, rounded once."""
        if factor == 1:
            return self.builder.fadd(x, y)
        return self.lanes.intrinsic(self.builder, "fma", self.lanes.constant(factor), y, x)

    def _times(self, factor: float, x: Value) -> Value:
        return x if factor == 1 else self.builder.fmul(self.lanes.constant(factor), x)

    def _sum_and_difference(self, even: Value, odd: Value) -> list[Value]:
        return [self.builder.fadd(even, odd), self.builder.fsub(even, odd)]


def both_ways(change: Callable[[Sequence[Value]], list[Value]], square: Square) -> list[list[Value]]:
    """Apply a change to each column, then to each row."""
    columns = [change(column) for column in zip(*square, strict=True)]
    return [change(row) for row in zip(*columns, strict=True)]


class Part:
    """A function of the module: name(pointers..., numbers..., sizes). It is compiled once per module."""

    def __init__(self, module: ir.Module, lanes: Lanes, name: str, pointers: int, numbers: int) -> None:
        kinds = [_POINTER] * pointers + [INDEX] * numbers + [_POINTER]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        *self.arguments, self._sizes = self.function.args
        self.builder, self.lanes = ir.IRBuilder(self.function.append_basic_block("entry")), lanes

    def sizes(self, *names: str) -> list[Value]:
        """Load some of the sizes."""
        return load_sizes(self.builder, self._sizes, *names)

    def finish(self) -> ir.Function:
        """Append the return; return the function."""
        self.builder.ret_void()
        return self.function

    def load(self, base: Value, index: Value) -> Value:
        return self.lanes.load(self.builder, DTYPE, base, index)

    def store(self, value: Value, base: Value, index: Value) -> None:
        self.lanes.store(self.builder, DTYPE, value, base, index)

    def index(self, positions: Sequence[Value | int], extents: Sequence[Value | int]) -> Value:
        """Return the index of a vector in an array in C order. extents: of all axes but the first and the lanes."""
        return index_of(self.builder, [*positions, 0], [*extents, self.lanes.count])


def index_of(builder: ir.IRBuilder, positions: Sequence[Value | int], extents: Sequence[Value | int]) -> Value:
    """Return the index of an element in an array in C order. extents: of all axes but the first."""
    index, *rest = (INDEX(each) if isinstance(each, int) else each for each in positions)
    for position, extent in zip(rest, extents, strict=True):
        index = builder.mul(index, INDEX(extent) if isinstance(extent, int) else extent)
        index = builder.add(index, position)
    return index


def load_sizes(builder: ir.IRBuilder, sizes: Value, *names: str) -> list[Value]:
    return [builder.load(element(builder, sizes, INDEX, INDEX(SIZES.index(name))), typ=INDEX) for name in names]


@dataclass(frozen=True)
class Window:
    """The pixels of an image, or of its results, that belong to a tile; some of them may lie outside."""

    part: Part
    image: Value
    rows: list[Value]
    columns: list[Value]
    height: Value
    width: Value

    @classmethod
    def of(cls, part: Part, tile: Value, extent: int, edges: Sequence[str], before: Sequence[Value]) -> "Window":
        """Return the ``extent`` rows and columns of a tile. edges: names of height and width. before: their padding."""
        b = part.builder
        height, width, rows, columns = part.sizes(*edges, "tile_rows", "tile_columns")
        row, column = b.udiv(tile, columns), b.urem(tile, columns)
        image, row = b.udiv(row, rows), b.urem(row, rows)
        starts = [b.sub(b.mul(each, INDEX(RESULTS)), gap) for each, gap in zip((row, column), before, strict=True)]
        down, across = ([b.add(start, INDEX(k)) for k in range(extent)] for start in starts)
        return cls(part, image, down, across, height, width)

    def pixels(self, blocks: Value, block: Value) -> list[list[tuple[Value, Value]]]:
        """Return (index, whether inside) of each pixel in a block of channels."""
        b = self.part.builder
        start = self.part.index([self.image, block, 0, 0], [blocks, self.height, self.width])
        # A number below 0 is a large unsigned number.
        down = [b.icmp_unsigned("<", row, self.height) for row in self.rows]
        across = [b.icmp_unsigned("<", column, self.width) for column in self.columns]
        return [
            [
                (b.add(start, self.part.index([row, column], [self.width])), b.and_(down[i], across[j]))
                for j, column in enumerate(self.columns)
            ]
            for i, row in enumerate(self.rows)
        ]


def write_transform(part: Part, extent: int, blocks: str, edges: Sequence[str], padding: Sequence[str]) -> None:
    """Write the function (x, zeros, transformed tiles[, totals], first, count): transform ``count`` tiles.

    extent: rows and columns of a tile, 6 for pixels, or 4 for gradients of results. totals: the sum over the pixels of
    all tiles is added to this array, one number per channel.
    """
    b, (x, zeros, transformed, *totals, first, count) = part.builder, part.arguments
    total, chunk = part.sizes(blocks, "chunk")
    before = part.sizes(*padding) if padding else [INDEX(0), INDEX(0)]
    transforms = Transforms(b, part.lanes)
    transform = transforms.transform_pixels if extent == POINTS else transforms.transform_filter

    def load(index: Value, inside: Value) -> Value:
        return part.lanes.load(b, DTYPE, b.select(inside, element(b, x, STORED[DTYPE], index), zeros))

    def tile(number: Value) -> None:
        window = Window.of(part, b.add(first, number), extent, edges, before)

        def of_block(block: Value) -> None:
            numbers = [[load(*pixel) for pixel in row] for row in window.pixels(total, block)]
            for each in totals:
                index = part.index([block], [])
                part.store(b.fadd(part.load(each, index), reduce(b.fadd, chain(*numbers))), each, index)
            for point, value in enumerate(chain(*both_ways(transform, numbers))):
                part.store(value, transformed, part.index([point, block, number], [total, chunk]))

        repeat(b, INDEX(0), total, 1, of_block)

    repeat(b, INDEX(0), count, 1, tile)


def load_square(load: Callable[[int], Value]) -> list[list[Value]]:
    """Load the 6x6 products of a tile. load: (number of the product) -> its value."""
    return [[load(row * POINTS + column) for column in range(POINTS)] for row in range(POINTS)]
