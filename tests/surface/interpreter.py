"""Triton's interpreter, without what it does again at every call of a device function. The results are the same.

At each call it looks through all of `triton.language` for what it has to replace, and finds it replaced by the launch
that the call belongs to; for each array it makes a table of all types to look up one. That is a third to a half of the
time that the kernels' tests take.
"""

from typing import Any


def hasten() -> None:
    """Once a process, before a kernel is launched. A release of Triton that names these otherwise stays as it is."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
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
