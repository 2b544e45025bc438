"""The base of optimizers: settings, and a rule that adds the update of each variable to a graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from runner.bounds import NonNegative, Positive
from runner.engine.graph import Expr, Gradient, Graph, Rows, ShapeError, Tensor, Variable, Variables, apply, ops
from runner.engine.graph.rows import dense, mapped, spec_of, tensor_of
from runner.optimizers.averages import AVERAGE, WeightsAverage, average_of
from runner.optimizers.batch_scaling import BatchScaling
from runner.optimizers.parameter_rules import InheritingRule, ParameterRule, place_of, read_rules, require_used
from runner.optimizers.row_updates import TouchedRows
from runner.optimizers.schedules import Schedule


@dataclass(frozen=True, eq=False)
class State(Expr):
    """A variable or slot as an expression: in the formulas of an update, its value before the update.

    variables: the store to which slots are added.
    """

    variable: Variable
    variables: Variables

    @classmethod
    def of(cls, variables: Variables, variable: Variable) -> Self:
        """Return ``variable``, which is in the store ``variables``, as an expression."""
        return cls(variables.graph, variable.tensor, variable, variables)

    def slot(self, name: str, initial: float = 0.0) -> Self:
        """Return the variable's slot of this name, all of whose elements start at ``initial``."""
        return self.of(self.variables, self.variables.slot(self.variable, name, initial))

    def copy(self, name: str) -> Self:
        """Return the variable's slot of this name, which starts with the initial value of the variable."""
        return self.of(self.variables, self.variables.copy(self.variable, name))


Of = TypeVar("Of")

NewValues = Sequence[tuple[State, Expr]]
"""Pairs of a state and its value after the step, for a variable and its slots."""

Rule = Callable[[State, Expr], NewValues]
"""A function that adds nodes for the new values of a variable and its slots, given the variable and its gradient."""


@dataclass
class Optimizer(ABC):
    """The base class of all optimizers; the fields are the settings.

    lr: base learning rate, which is multiplied by a schedule. weight_decay: strength of the decay of weights to 0, in
    the form that each optimizer documents; biases and normalisation parameters do not decay. clip_norm: largest
    Euclidean norm of all gradients of an update, taken together; longer gradients are scaled down. None for no limit.
    decoupled_weight_decay: if true, the decay is not part of the gradient: lr * weight_decay * w is subtracted from the
    updated weight (Loshchilov and Hutter 2019; lr is the rate of the step, as in PyTorch). The decay of ``sgd``
    and ``adamw`` is always decoupled.
    rules: settings for variables with certain names; the first rule that matches a name applies. See
    :class:`~runner.optimizers.parameter_rules.ParameterRule`.
    batch_scaling: see :class:`~runner.optimizers.batch_scaling.BatchScaling`. average: see
    :class:`~runner.optimizers.averages.WeightsAverage`.

    The state of an optimizer is held in slots. A slot is a variable that is named after a trained variable, such as
    "conv1/weights/velocity", and is on the same device and in the same checkpoints.

    lazy: whether an update of a table changes only the rows that the batch looks up, and their slots, as in
    TensorFlow's LazyAdamOptimizer. Momentum, running averages, weight decay and ``average`` also change rows without a
    gradient. With lazy=false, they update all rows, in time proportional to the size of the table. With lazy=true, they
    update a row only when a batch looks it up, so the results differ.

    line_search: whether an update evaluates its batch several times, which not every strategy supports. keeps_rows:
    whether the rule, without weight decay, leaves an element and its slots unchanged if the gradient is 0. Subclasses
    do not inherit this value.
    """

    line_search: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = False

    name: str = ""
    lr: Positive = 0.01
    weight_decay: NonNegative = 0.0
    clip_norm: Positive | None = None
    decoupled_weight_decay: bool = False
    rules: list[Any] = field(default_factory=list)
    batch_scaling: BatchScaling = field(default_factory=BatchScaling)
    average: WeightsAverage = field(default_factory=WeightsAverage)
    lazy: bool = False

    def __post_init__(self) -> None:
        read_rules(self.rules)

    @property
    def against_divergence(self) -> str:
        """Advice for losses that are no longer finite: the settings that make steps shorter."""
        return f"lower optimizer.lr or {'set ' if self.clip_norm is None else ''}optimizer.clip_norm"

    @property
    def parameter_rules(self) -> list[ParameterRule]:
        """The rules of ``rules``, and any rules that other settings imply."""
        return read_rules(self.rules)

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of the rules that have one, in the order of the rules."""
        return [rule.schedule for rule in self.parameter_rules if rule.schedule is not None]

    @property
    def rate_shape(self) -> tuple[int, ...]:
        """Shape of the fed learning rates: (), or (1 + n,) for the run's schedule and the n of :attr:`schedules`."""
        return (1 + len(self.schedules),) if self.schedules else ()

    def for_batch(self, batch_size: int) -> Self:
        """Return this optimizer with the learning rate and the decays that ``batch_scaling`` gives for a batch."""
        scaling = self.batch_scaling
        if not scaling.active:
            return self

        def scaled(rule: ParameterRule) -> ParameterRule:
            own = rule.weight_decay
            decay = scaling.decay(self.lr * rule.lr_factor, self.weight_decay if own is None else own, batch_size)
            return InheritingRule(**vars(rule), decay=decay) if own is None else replace(rule, weight_decay=decay)

        return replace(
            self,
            lr=self.lr * scaling.factor(batch_size),
            weight_decay=scaling.decay(self.lr, self.weight_decay, batch_size),
            rules=list(map(scaled, read_rules(self.rules))),
            batch_scaling=BatchScaling(),
        )

    def require_fitting(self, names: Sequence[str]) -> None:
        """Raise ConfigError if a rule applies to none of the trained variables, whose names are given."""
        require_used(read_rules(self.rules), names)

    def evaluated(self, variables: Mapping[str, Of]) -> dict[str, Of]:
        """Return the values of a checkpoint with which the network is evaluated: averages, if the run keeps any."""
        if self.average.decay is None:
            return dict(variables)
        return {name: variables.get(average_of(name), value) for name, value in variables.items()}

    @abstractmethod
    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        """Add the nodes that all updates share; return the rule. learning_rate: a scalar. step: see :meth:`assign`."""

    def updates(self, learning_rate: Expr, step: Expr) -> Rule:
        """Return the rule for every variable: :meth:`rule` with the settings of ``rules`` and the update of averages.

        For arguments, see :meth:`assign`. Adds the nodes that the updates of all variables share.
        """
        rules = self.parameter_rules
        decays = [None, *(each.decay if isinstance(each, InheritingRule) else each.weight_decay for each in rules)]
        rates = self.rates(learning_rate)
        of_rules = [self._decaying(decay, rate, step) for decay, rate in zip(decays, rates, strict=True)]

        def update(w: State, g: Expr) -> NewValues:
            place = place_of(rules, w.variable.name)
            if place is None:
                return of_rules[0](w, g)
            if rules[place].weight_decay is not None:
                w = State.of(w.variables, replace(w.variable, decayed=True))
            return of_rules[1 + place](w, g)

        return self._averaged(update if rules else of_rules[0], learning_rate, step)

    def rates(self, learning_rate: Expr) -> list[Expr]:
        """Return the rate of variables to which no rule applies, and then the rate of each of ``parameter_rules``.

        learning_rate: of shape :attr:`rate_shape`.
        """
        own, *others = _scalars(learning_rate)
        scheduled = iter(others)
        found = [own]
        for rule in self.parameter_rules:
            rate = own if rule.schedule is None else next(scheduled)
            found.append(rate if rule.lr_factor == 1.0 else rule.lr_factor * rate)
        return found

    def rate_by_name(self, rates: Sequence[Expr]) -> Callable[[str], Expr]:
        """Return a function from the name of a variable to its rate, which is one of ``rates`` (see :meth:`rates`).

        Only the entries of ``rules`` apply. The factor ``bias_lr_factor`` does not apply, because the local steps of
        ``async_data`` leave it out.
        """
        rules = read_rules(self.rules)

        def rate_of(name: str) -> Expr:
            place = place_of(rules, name)
            return rates[0 if place is None else 1 + place]

        return rate_of

    def _decaying(self, weight_decay: float | None, rate: Expr, step: Expr) -> Rule:
        """Return the rule with this weight decay, decoupled if configured; None for the optimizer's decay."""
        decay = self.weight_decay if weight_decay is None else weight_decay
        if decay == 0.0 or not self.decoupled_weight_decay:
            return (self if decay == self.weight_decay else replace(self, weight_decay=decay)).rule(rate, step)
        without_decay = replace(self, weight_decay=0.0).rule(rate, step)

        def update(w: State, g: Expr) -> NewValues:
            values = without_decay(w, g)
            if not w.variable.decayed:
                return values
            shrinkage = decay * w * rate
            return [(state, new - shrinkage if state.tensor == w.tensor else new) for state, new in values]

        return update

    def _averaged(self, rule: Rule, learning_rate: Expr, step: Expr) -> Rule:
        """Return a rule that also updates the average of each variable, if the run keeps averages."""
        if self.average.decay is None:
            return rule
        with step.graph.name_scope(AVERAGE):
            share = self.average.share(step, learning_rate.spec.dtype)

        def update(w: State, g: Expr) -> NewValues:
            values = rule(w, g)
            mean = w.copy(AVERAGE)
            (new,) = (value for state, value in values if state.tensor == w.tensor)
            # Unlike d * mean + (1 - d) * new, this form does not change the mean of a constant weight.
            return [*values, (mean, mean + (new - mean) * share)]

        return update

    def updates_rows(self, variable: Variable) -> bool:
        """Return whether the update of a variable changes only the rows that a gradient names."""
        if self.lazy:
            return True
        rules = read_rules(self.rules)
        place = place_of(rules, variable.name)
        decay = None if place is None else rules[place].weight_decay
        if decay is None:
            decay = self.weight_decay if variable.decayed else 0.0
        # A subclass may have another rule, so ``keeps_rows`` is not inherited.
        keeps_rows = vars(type(self)).get("keeps_rows", False)
        return keeps_rows and decay == 0.0 and self.average.decay is None

    def assign(
        self,
        variables: Variables,
        gradients: Sequence[tuple[Variable, Gradient]],
        *,
        learning_rate: Tensor,
        step: Tensor,
    ) -> list[str]:
        """Add one update of every variable in ``gradients``; return the names of the assign nodes.

        variables: the store of the variables and slots; nodes are added to its graph. gradients: pairs of variable and
        gradient, already clipped (:meth:`clipped`); a gradient is a tensor of the graph with the variable's shape and
        dtype, or rows of such a tensor. learning_rate: of shape :attr:`rate_shape`, in the variables' dtype. step: an
        int64 scalar, the number of the step, from 0. Each node records the layer of the variable that it updates; the
        caller sets the scope and device of the nodes.
        """
        if not gradients:
            return []
        rule = self.updates(Expr(variables.graph, learning_rate), Expr(variables.graph, step))
        return [target for variable, gradient in gradients for target in assign_by(rule, variables, variable, gradient)]

    def clipped(
        self, graph: Graph, gradients: Sequence[tuple[Variable, Gradient]], counted: Sequence[Gradient] | None = None
    ) -> list[tuple[Variable, Gradient]]:
        """Return the pairs of variable and gradient, with gradients scaled down to ``clip_norm`` if necessary.

        Rows become a tensor of the size of their table if the update changes all rows (:meth:`updates_rows`). For
        arguments and errors, see :meth:`clip_factor`.
        """
        gradients = [(v, each if self.updates_rows(v) else dense(graph, each)) for v, each in gradients]
        factor = self.clip_factor(graph, gradients, counted)
        return list(gradients) if factor is None else shortened(graph, gradients, factor)

    def clip_factor(
        self, graph: Graph, gradients: Sequence[tuple[Variable, Gradient]], counted: Sequence[Gradient] | None = None
    ) -> Tensor | None:
        """Return the scalar factor that clips the gradients, in their dtype; None if there is no limit or no gradient.

        gradients: pairs of variable and gradient, possibly on several devices; the norm is taken over all gradients, in
        this order. counted: the gradients from which the norm is computed if some of ``gradients`` are copies of
        others. Raises ShapeError if a gradient differs from its variable in shape or dtype.
        """
        for variable, gradient in gradients:
            # Arithmetic broadcasts, so a gradient of another shape would not be detected later.
            if (found := spec_of(graph, gradient)) != variable.spec:
                name = variable.name
                raise ShapeError(f"the gradient {gradient} of variable {name!r} is {found}; expected {variable.spec}")
        if self.clip_norm is None or not gradients:
            return None
        tensors = [gradient for _, gradient in gradients] if counted is None else counted
        with graph.name_scope("clip"):
            return clip_factor(graph, tensors, self.clip_norm)

    def with_decay(self, w: State, direction: Expr) -> Expr:
        """Return direction + weight_decay * w, or ``direction`` if w does not decay."""
        if self.weight_decay == 0.0 or not w.variable.decayed:
            return direction
        return direction + self.weight_decay * w


def assign_by(rule: Rule, variables: Variables, variable: Variable, gradient: Gradient) -> list[str]:
    """Add the update of one variable and its slots by a rule; return the names of the assign nodes."""
    graph = variables.graph
    with graph.name_scope(variable.name), graph.layer(variable.layer):
        values = updated(rule, variables, variable, gradient)
        return [ops.assign(graph, state.tensor, value).node for state, value in values]


def updated(rule: Rule, variables: Variables, variable: Variable, gradient: Gradient) -> list[tuple[Variable, Tensor]]:
    """Return a variable and its slots, each with its value after an update by a rule.

    If the gradient holds rows, the rule is applied to these rows of the variable and of the slots.
    """
    graph = variables.graph
    if not isinstance(gradient, Rows):
        values = rule(State.of(variables, variable), Expr(graph, gradient))
        return [(state.variable, value.tensor) for state, value in values]
    rows = TouchedRows(variables, gradient)
    values = rule(State.of(rows, rows.of(variable)), Expr(graph, rows.total))
    return [(rows.table(state.variable), rows.put(state.variable, value.tensor)) for state, value in values]


def global_norm(graph: Graph, tensors: Sequence[Gradient]) -> Tensor:
    """Return the Euclidean norm, a scalar, of float tensors of one dtype, taken together as one vector.

    Values of rows with equal indices are added first. Squares are summed in their dtype, tensor by tensor in the given
    order. In float32 a norm beyond 1.8e19 overflows to infinity. The tensors may be on several devices: the squares of
    each tensor are summed on its device, and the norm is computed from these sums on the caller's device.
    """
    squares = []
    for tensor in tensors:
        with graph.device(graph.nodes[tensor_of(tensor).node].device):
            squares.append(ops.reduce_sum(graph, _squares(graph, tensor)))
    return ops.sqrt(graph, ops.add_n(graph, squares), name="global_norm")


def _squares(graph: Graph, gradient: Gradient) -> Tensor:
    """Return the squared elements. Of rows with equal indices, the first becomes the squared sum, the others 0."""
    if not isinstance(gradient, Rows):
        return ops.square(graph, gradient)
    totals, first = ops.add_equal_rows(graph, gradient.indices, gradient.values)
    spec = graph.spec(totals)
    mask = ops.reshape(graph, first, (spec.shape[0], *(1 for _ in spec.shape[1:])))
    return ops.mul(graph, ops.square(graph, totals), mask)


def clip_factor(graph: Graph, tensors: Sequence[Gradient], limit: float) -> Tensor:
    """Return the scalar min(1, limit / global norm) in the dtype of the tensors (Pascanu et al. 2013, algorithm 1).

    limit: the largest norm after clipping, above 0. The factor is exactly 1 if the norm is at most ``limit``, and NaN
    if the norm is not finite, so that the failure of the step is detected.
    """
    norm = Expr(graph, global_norm(graph, tensors))
    bound = norm.scalar(limit)
    # For a norm of at most the bound, the factor is bound / bound, which is exactly 1. The divisor is never 0.
    factor = bound / apply(ops.maximum, norm, bound)
    # norm - norm is 0 if the norm is finite, else NaN. Without it, an infinite norm would set finite gradients to 0.
    return (factor + (norm - norm)).tensor


def shortened(graph: Graph, gradients: Sequence[tuple[Of, Gradient]], factor: Tensor) -> list[tuple[Of, Gradient]]:
    """Multiply each gradient by a scalar factor, on the gradient's device; return the pairs with the new gradients."""
    clipped = []
    for variable, gradient in gradients:
        with graph.name_scope("clip"), graph.device(graph.nodes[tensor_of(gradient).node].device):
            clipped.append((variable, mapped(gradient, lambda each: ops.mul(graph, each, factor))))
    return clipped


def _scalars(values: Expr) -> list[Expr]:
    """Return the elements of a vector or of a scalar as scalars."""
    if not values.spec.shape:
        return [values]
    elements = (apply(ops.slice, values, begin=(place,), size=(1,)) for place in range(values.spec.shape[0]))
    return [apply(ops.reshape, element, shape=()) for element in elements]
