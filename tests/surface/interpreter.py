"""Triton's interpreter, without what it does again at every call of a device function. The results are the same.

At each call it looks through all of `triton.language` for what it has to replace, and finds it replaced by the launch
that the call belongs to; for each array it makes a table of all types to look up one. That is a third to a half of the
time that the kernels' tests take. Of what is left a quarter went to shapes: each result spells its own out, in a type
with a name and in a tuple of constants with a type of its own. A quarter of the rest computes whether integers
overflow, which is not looked at outside the debug mode, and another one reduces tensors by a kernel's own function, an
element at a time.
"""

from math import prod
from typing import Any, NamedTuple


def hasten() -> None:
    """Once a process, before a kernel is launched. A release of Triton that names these otherwise stays as it is."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    _launch_once(tl, interpreter)
    _remember_shapes(tl.core)
    _check_what_is_asked(interpreter)
    _reduce_by_halves(tl, interpreter)


def _launch_once(tl: Any, interpreter: Any) -> None:
    names = ("_patch_lang", "_LangPatchScope", "_get_np_dtype")
    if not all(hasattr(interpreter, name) for name in names):
        return
    slowly: Any = interpreter
    patch, np_dtype, known = slowly._patch_lang, slowly._get_np_dtype, {}

    def patch_once(fn: Any) -> Any:
        langs = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if not langs or any(tl.core.is_builtin(lang.load) for lang in langs):
            return patch(fn)
        return slowly._LangPatchScope()

    def remembered(tt_dtype: Any) -> Any:
        scalar = tt_dtype.scalar
        key = "pointer" if isinstance(scalar, tl.pointer_type) else scalar.name
        if key not in known:
            known[key] = np_dtype(tt_dtype)
        return known[key]

    slowly._patch_lang, slowly._get_np_dtype = patch_once, remembered


class _Shape(NamedTuple):
    """numbers, constants: as a type and as a tensor show the shape. count: how many in all; constant: the same."""

    numbers: Any
    count: int
    constants: Any
    constant: Any


def _remember_shapes(core: Any) -> None:
    names = ("tensor", "block_type", "tuple", "constexpr")
    if not all(isinstance(getattr(core, name, None), type) for name in names):
        return
    tensor, block_type, constexpr = core.tensor, core.block_type, core.constexpr
    make_type, known, found = block_type.__init__, {}, {}

    def shape_of(sizes: tuple[int, ...]) -> _Shape:
        if sizes not in known:
            constants = core.tuple([constexpr(size) for size in sizes])
            shape = known[sizes] = _Shape(core.tuple(sizes), prod(sizes), constants, constexpr(prod(sizes)))
            # Whoever is asked by its identity lives as long as the table.
            found[id(shape.numbers)] = found[id(shape.constants)] = shape
        return known[sizes]

    nothing = shape_of(())

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = nothing
        if type.is_block():
            shape = found.get(id(type.shape)) or shape_of(tuple(type.shape))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shape.constant, shape.constants

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        kept = found.get(id(shape))
        if kept is None or kept is nothing:
            make_type(self, element_ty, shape)
            self.shape = shape_of(tuple(self.shape)).numbers
        else:
            self.element_ty, self.shape, self.numel = element_ty, kept.numbers, kept.count

    # Spelt out when somebody asks.
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>", lambda self, value: None)
    tensor.__init__, block_type.__init__ = init_tensor, init_type


def _check_what_is_asked(interpreter: Any) -> None:
    semantic = type(getattr(interpreter, "interpreter_semantic", None))
    name = "binary_op_sanitize_overflow_impl"
    if not hasattr(semantic, name):
        return
    check = getattr(semantic, name)

    def check_if_asked(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            check(self, lhs, rhs, binary_op)

    setattr(semantic, name, check_if_asked)


def _reduce_by_halves(tl: Any, interpreter: Any) -> None:
    reduce_ops = getattr(interpreter, "ReduceOps", None)
    if not all(hasattr(reduce_ops, name) for name in ("generic_reduce", "to_tensor")):
        return
    one_by_one = reduce_ops.generic_reduce

    def in_pairs(self: Any, inputs: Any) -> Any:
        """Of neighbours, so that what is combined stays in order."""
        count = 0 if self.axis is None or self.keep_dims else inputs[0].handle.data.shape[self.axis]
        if count < 2 or count & (count - 1):
            return one_by_one(self, inputs)
        dtypes = [each.dtype for each in inputs]
        data = [each.handle.data.swapaxes(0, self.axis) for each in inputs]
        while len(data[0]) > 1:
            halves = [
                self.to_tensor(each[side::2], dtype)
                for side in (0, 1)
                for each, dtype in zip(data, dtypes, strict=True)
            ]
            found = self.combine_fn.fn(*halves)
            data = [each.handle.data for each in (found if isinstance(found, tuple) else (found,))]
        return [self.to_tensor(each[0], dtype) for each, dtype in zip(data, dtypes, strict=True)]

    reduce_ops.generic_reduce = in_pairs
