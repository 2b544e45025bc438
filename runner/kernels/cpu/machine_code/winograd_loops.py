"""Machine code for convolutions with 3x3 filters and their gradients; see ``winograd_tiles`` for the method.

The products at each of the 36 pairs of points, summed over the channels, are a matrix product of transformed tiles and
filters. The gradient of the filters is a convolution too: a tile of 4x4 gradients takes the place of the filter and,
with the 6x6 pixels below it, gives 3x3 results, which are summed over the tiles.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain, product

from llvmlite import ir

from runner.kernels.cpu.machine_code.instructions import EMIT, INDEX, STORED, Lanes, Value, element, fold, repeat
from runner.kernels.cpu.machine_code.loops import slice_module
from runner.kernels.cpu.machine_code.winograd_tiles import (
    DTYPE,
    POINTS,
    RESULTS,
    TAPS,
    Part,
    Transforms,
    Window,
    both_ways,
    index_of,
    load_sizes,
    load_square,
    write_transform,
)

FORWARD = ("x", "filters", "zeros", "scratch", "sizes", "y")
"""Arrays of :func:`write_convolution`, before ``bias`` and ``residual``."""

_ONE = Lanes(DTYPE, 1)
_UNROLLED = 4  # channels in the innermost loop; more would take longer to compile


def _write_products(part: Part, rows: int, vectors: int) -> None:
    """Write the function (transformed tiles, transformed filters, sums, count): sums over the inner channels.

    ``rows`` tiles and ``vectors`` vectors of filters are added up in registers. The last rows may lie beyond tile
    ``count``: these rows are computed from unspecified values and not read. ``chunk`` is a multiple of ``rows``.
    """
    b, lanes, (tiles, filters, sums, count) = part.builder, part.lanes, part.arguments
    inner, outer, chunk = part.sizes("inner", "outer", "chunk")

    def of_rows(point: Value, vectors: int, block: Value, tile: Value) -> None:
        places = list(product(range(rows), range(vectors)))
        outputs = [b.add(block, INDEX(vector)) for vector in range(vectors)]

        def add_block(channels: Value, totals: Sequence[Value]) -> Sequence[Value]:
            at = part.index([point, channels, tile], [inner, chunk])
            columns = [part.index([point, each, channels, 0], [outer, inner, lanes.count]) for each in outputs]

            def add_some(first: Value, totals: Sequence[Value]) -> Sequence[Value]:
                for k in (b.add(first, INDEX(step)) for step in range(_UNROLLED)):
                    offset = b.mul(k, INDEX(lanes.count))
                    w = [part.load(filters, b.add(column, offset)) for column in columns]
                    x = [b.add(b.add(at, INDEX(row * lanes.count)), k) for row in range(rows)]
                    x = [lanes.spread(b, _ONE.load(b, DTYPE, tiles, index)) for index in x]
                    pairs = zip(places, totals, strict=True)
                    totals = [lanes.intrinsic(b, "fma", x[row], w[vector], total) for (row, vector), total in pairs]
                return totals

            return fold(b, INDEX(0), INDEX(lanes.count), _UNROLLED, totals, add_some)

        totals = fold(b, INDEX(0), inner, 1, [lanes.constant(0.0)] * len(places), add_block)
        for (row, vector), total in zip(places, totals, strict=True):
            part.store(total, sums, part.index([point, outputs[vector], b.add(tile, INDEX(row))], [outer, chunk]))

    def of_point(point: Value) -> None:
        _in_blocks(
            b,
            outer,
            vectors,
            lambda many, block: repeat(b, INDEX(0), count, rows, partial(of_rows, point, many, block)),
        )

    repeat(b, INDEX(0), INDEX(POINTS**2), 1, of_point)


def _in_blocks(builder: ir.IRBuilder, count: Value, most: int, body: Callable[[int, Value], None]) -> None:
    """Append ``body(many, first)`` for 0..count-1: ``most`` at a time, then one by one."""
    whole = builder.mul(builder.udiv(count, INDEX(most)), INDEX(most))
    repeat(builder, INDEX(0), whole, most, partial(body, most))
    repeat(builder, whole, count, 1, partial(body, 1))


def _write_results(part: Part, bias: bool, residual: bool, relu: bool) -> None:
    """Write the function (sums, y[, bias][, residual], first, count): transform, add and apply ReLU."""
    b, lanes, (sums, y, *added, first, count) = part.builder, part.lanes, part.arguments
    outer, chunk = part.sizes("outer", "chunk")
    transform = partial(Transforms(b, lanes).transform_products, RESULTS)

    def of_block(number: Value, window: Window, block: Value) -> None:
        products = load_square(lambda point: part.load(sums, part.index([point, block, number], [outer, chunk])))
        results = chain(*both_ways(transform, products))
        shift = part.load(added[0], part.index([block], [])) if bias else None
        for result, (index, inside) in zip(results, chain(*window.pixels(outer, block)), strict=True):
            value = b.fadd(result, shift) if bias else result
            with b.if_then(inside, likely=True):
                value = b.fadd(value, part.load(added[-1], index)) if residual else value
                part.store(EMIT["relu"](b, lanes, value) if relu else value, y, index)

    def tile(number: Value) -> None:
        window = Window.of(part, b.add(first, number), RESULTS, ("result_height", "result_width"), [INDEX(0), INDEX(0)])
        repeat(b, INDEX(0), outer, 1, partial(of_block, number, window))

    repeat(b, INDEX(0), count, 1, tile)


def _each_chunk(
    b: ir.IRBuilder, sizes: Value, begin: Value, end: Value, start: Callable[[Value], Callable[[Value, Value], None]]
) -> None:
    """Append the loops over workers begin..end-1 and the chunks of their shares.

    start: (worker) -> function that appends the work for ``count`` tiles from ``first`` on.
    """
    tiles, chunk, share = load_sizes(b, sizes, "tiles", "chunk", "share")

    def least(x: Value, y: Value) -> Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    def worker(number: Value) -> None:
        body = start(number)
        first = least(b.mul(number, share), tiles)
        left = b.sub(least(b.add(first, share), tiles), first)
        chunks = b.udiv(b.sub(b.add(left, chunk), INDEX(1)), chunk)

        def work(number: Value) -> None:
            done = b.mul(number, chunk)
            body(b.add(first, done), least(b.sub(left, done), chunk))

        repeat(b, INDEX(0), chunks, 1, work)

    repeat(b, begin, end, 1, worker)


def _areas(b: ir.IRBuilder, scratch: Value, worker: Value, extents: Sequence[Value]) -> list[Value]:
    """Return the addresses of a worker's areas of scratch memory. extents: sizes of the areas in elements."""
    areas = [element(b, scratch, STORED[DTYPE], b.mul(worker, reduce(b.add, extents)))]
    for extent in extents[:-1]:
        areas.append(element(b, areas[-1], STORED[DTYPE], extent))
    return areas


def write_convolution(lanes: Lanes, rows: int, vectors: int, bias: bool, residual: bool, relu: bool) -> str:
    """Return the module whose ``slice`` computes the tiles of some workers. Arrays: :data:`FORWARD`."""
    added = bias + residual

    def write(b: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        x, filters, zeros, scratch, sizes, y, *rest = bases
        image = Part(b.module, lanes, "transform_image", 3, 2)
        write_transform(image, POINTS, "inner", ("height", "width"), ("top", "left"))
        products = Part(b.module, lanes, "multiply", 3, 1)
        _write_products(products, rows, vectors)
        results = Part(b.module, lanes, "transform_products", 2 + added, 2)
        _write_results(results, bias, residual, relu)
        transform_image, multiply, transform_products = (part.finish() for part in (image, products, results))
        inner, outer, chunk = load_sizes(b, sizes, "inner", "outer", "chunk")
        per_block = b.mul(chunk, INDEX(POINTS**2 * lanes.count))

        def start(worker: Value) -> Callable[[Value, Value], None]:
            tiles, sums = _areas(b, scratch, worker, [b.mul(per_block, blocks) for blocks in (inner, outer)])

            def work(first: Value, count: Value) -> None:
                b.call(transform_image, [x, zeros, tiles, first, count, sizes])
                b.call(multiply, [tiles, filters, sums, count, sizes])
                b.call(transform_products, [sums, y, *rest, first, count, sizes])

            return work

        _each_chunk(b, sizes, begin, end, start)

    return slice_module("winograd", len(FORWARD) + added, write)


def write_filters(lanes: Lanes, is_input_gradient: bool) -> str:
    """Return the module whose ``slice([w, filters, sizes], begin, end)`` transforms pairs of blocks of filters.

    w: blocks (outer, inner, 9, inner channels, outer channels). For the gradient of the images, the blocks are in the
    order (inner, outer, ...), and the filters are rotated by 180 degrees. filters: transformed filters.
    """

    def write(b: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        w, filters, sizes = bases
        transform = Transforms(b, lanes).transform_filter
        inner, outer = load_sizes(b, sizes, "inner", "outer")
        square, width = TAPS**2, lanes.count

        def pair(number: Value) -> None:
            outer_block, inner_block = b.udiv(number, inner), b.urem(number, inner)
            stored = index_of(b, [inner_block, outer_block], [outer]) if is_input_gradient else number

            def channel(k: Value) -> None:
                taps = [
                    lanes.load(b, DTYPE, w, index_of(b, [stored, tap, k, 0], [square, width, width]))
                    for tap in (reversed(range(square)) if is_input_gradient else range(square))
                ]
                rows = [taps[row * TAPS : (row + 1) * TAPS] for row in range(TAPS)]
                for point, value in enumerate(chain(*both_ways(transform, rows))):
                    index = index_of(b, [point, outer_block, inner_block, k, 0], [outer, inner, width, width])
                    lanes.store(b, DTYPE, value, filters, index)

            repeat(b, INDEX(0), INDEX(width), 1, channel)

        repeat(b, begin, end, 1, pair)

    return slice_module("winograd_filters", 3, write)


def _write_sums_over_tiles(part: Part, rows: int, vectors: int) -> None:
    """Write the function (transformed x, transformed dy, sums, count): add the products of ``count`` tiles to the sums.

    ``rows`` channels of the image and ``vectors`` vectors of filters are added up in registers.
    """
    b, lanes, (tiles, gradients, sums, count) = part.builder, part.lanes, part.arguments
    inner, outer, chunk = part.sizes("inner", "outer", "chunk")

    def of_rows(point: Value, vectors: int, block: Value, group: Value) -> None:
        places = list(product(range(rows), range(vectors)))
        outputs = [b.add(block, INDEX(vector)) for vector in range(vectors)]
        channel = b.mul(group, INDEX(rows))
        of, k = b.udiv(channel, INDEX(lanes.count)), b.urem(channel, INDEX(lanes.count))
        homes = [
            part.index([point, outputs[vector], b.add(channel, INDEX(row))], [outer, b.mul(inner, INDEX(lanes.count))])
            for row, vector in places
        ]
        x_start = b.add(part.index([point, of, 0], [inner, chunk]), k)
        dy_starts = [part.index([point, each, 0], [outer, chunk]) for each in outputs]

        def add(tile: Value, totals: Sequence[Value]) -> Sequence[Value]:
            offset = b.mul(tile, INDEX(lanes.count))
            dy = [part.load(gradients, b.add(at, offset)) for at in dy_starts]
            at = b.add(x_start, offset)
            x = [lanes.spread(b, _ONE.load(b, DTYPE, tiles, b.add(at, INDEX(row)))) for row in range(rows)]
            pairs = zip(places, totals, strict=True)
            return [lanes.intrinsic(b, "fma", x[row], dy[vector], total) for (row, vector), total in pairs]

        totals = fold(b, INDEX(0), count, 1, [part.load(sums, home) for home in homes], add)
        for home, total in zip(homes, totals, strict=True):
            part.store(total, sums, home)

    def of_point(point: Value) -> None:
        groups = b.mul(inner, INDEX(lanes.count // rows))
        _in_blocks(
            b,
            outer,
            vectors,
            lambda many, block: repeat(b, INDEX(0), groups, 1, partial(of_rows, point, many, block)),
        )

    repeat(b, INDEX(0), INDEX(POINTS**2), 1, of_point)


def write_filter_gradient(lanes: Lanes, rows: int, vectors: int, bias: bool) -> str:
    """Return the module whose ``slice`` sums the tiles of some workers. Arrays: x, dy, zeros, scratch, sizes.

    The scratch memory of a worker begins with its sums: a transformed gradient of the filters, and a number per filter.
    """

    def write(b: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        x, dy, zeros, scratch, sizes = bases
        image = Part(b.module, lanes, "transform_image", 3, 2)
        write_transform(image, POINTS, "inner", ("height", "width"), ("top", "left"))
        gradient = Part(b.module, lanes, "transform_gradient", 3 + bias, 2)
        write_transform(gradient, RESULTS, "outer", ("result_height", "result_width"), ())
        products = Part(b.module, lanes, "add_products", 3, 1)
        _write_sums_over_tiles(products, rows, vectors)
        transform_image, transform_gradient, add_products = (part.finish() for part in (image, gradient, products))
        extents = _gradient_areas(b, lanes, sizes)

        def start(worker: Value) -> Callable[[Value, Value], None]:
            sums, totals, tiles, gradients = _areas(b, scratch, worker, extents)
            zero, ends = lanes.constant(0.0), b.add(*extents[:2])
            repeat(b, INDEX(0), ends, lanes.count, lambda index: lanes.store(b, DTYPE, zero, sums, index))

            def work(first: Value, count: Value) -> None:
                b.call(transform_image, [x, zeros, tiles, first, count, sizes])
                b.call(transform_gradient, [dy, zeros, gradients, *[totals] * bias, first, count, sizes])
                b.call(add_products, [tiles, gradients, sums, count, sizes])

            return work

        _each_chunk(b, sizes, begin, end, start)

    return slice_module("winograd_filter_gradient", 5, write)


def _gradient_areas(b: ir.IRBuilder, lanes: Lanes, sizes: Value) -> list[Value]:
    """Return the extents of a worker's areas: sums for filters and biases, transformed x, transformed dy."""
    inner, outer, chunk = load_sizes(b, sizes, "inner", "outer", "chunk")
    per_block = b.mul(chunk, INDEX(POINTS**2 * lanes.count))
    filters = b.mul(b.mul(inner, outer), INDEX((POINTS * lanes.count) ** 2))
    return [filters, b.mul(outer, INDEX(lanes.count)), b.mul(per_block, inner), b.mul(per_block, outer)]


def write_gradient_results(lanes: Lanes, bias: bool) -> str:
    """Return the module whose ``slice([scratch, sizes, dw[, db]], begin, end)`` adds the sums of all workers.

    begin, end: a range of pairs of blocks. dw: blocks (outer, inner, 9, inner channels, outer channels). db: (outer
    channels).
    """

    def write(b: ir.IRBuilder, bases: list[Value], begin: Value, end: Value) -> None:
        scratch, sizes, dw, *db = bases
        extents = _gradient_areas(b, lanes, sizes)
        inner, outer, workers = load_sizes(b, sizes, "inner", "outer", "workers")
        transform = partial(Transforms(b, lanes).transform_products, TAPS)
        stride, width = reduce(b.add, extents), lanes.count

        def add_up(index: Value) -> Value:
            def add(worker: Value, totals: Sequence[Value]) -> Sequence[Value]:
                more = lanes.load(b, DTYPE, scratch, b.add(index, b.mul(stride, worker)))
                return [b.fadd(*totals, more)]

            return fold(b, INDEX(1), workers, 1, [lanes.load(b, DTYPE, scratch, index)], add)[0]

        def pair(number: Value) -> None:
            def channel(k: Value) -> None:
                products = load_square(
                    lambda point: add_up(index_of(b, [point, number, k, 0], [b.mul(inner, outer), width, width]))
                )
                for tap, value in enumerate(chain(*both_ways(transform, products))):
                    lanes.store(b, DTYPE, value, dw, index_of(b, [number, tap, k, 0], [TAPS**2, width, width]))

            repeat(b, INDEX(0), INDEX(width), 1, channel)
            for each in db:
                with b.if_then(b.icmp_unsigned("==", b.urem(number, inner), INDEX(0))):
                    filters = b.mul(b.udiv(number, inner), INDEX(width))
                    lanes.store(b, DTYPE, add_up(b.add(extents[0], filters)), each, filters)

        repeat(b, begin, end, 1, pair)

    return slice_module("winograd_gradient_results", 3 + bias, write)
