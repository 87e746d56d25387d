"""Opens a target: the embedded model, a folder, a GGUF file, or a model of the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from draftproof.errors import ModelError, ParameterError, UnsupportedModelError
from draftproof.targets.dtype import resolve_dtype, resolve_format
from draftproof.targets.fused import fuse_norms, fuse_projections
from draftproof.targets.half_linear import round_weights, too_large
from draftproof.targets.hf import DEFAULT_WIDTH, HFTarget
from draftproof.targets.parallel import leaves_at_exit, plan_arguments
from draftproof.targets.products import pack_linears, product_kind
from draftproof.targets.support import check_architecture, check_config, check_weights


def load_target(
    model: str | None = None,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    num_slots: int = 1,
    max_model_len: int | None = None,
    invariant: bool | None = None,
    width: int | None = None,
    max_num_cached_tokens: int | None = None,
    cache_memory: int | None = None,
    sharded: bool = False,
) -> tuple[HFTarget, Any]:
    """Returns the target and its transformers tokenizer.

    model: None for the embedded model, else a folder, a `.gguf` file, or a hub name.
    dtype: `auto` or a name or torch dtype. float16 on a CPU that widens it (`half_linear.py`) rounds the weights alone:
    the target computes in float32. There `auto` takes it where it would have taken float32 (`dtype.py`), unless a
    weight is too large for it. invariant: None means on where less than float32 is computed in.
    width: tokens of a forward under `invariant` where shapes have to be fixed; None takes the default.
    max_num_cached_tokens, cache_memory: of all slots together, see `memory.py`.
    sharded: cut the layers over the processes of a torchrun, by transformers' own plan; see `parallel.py`.

    Raises ModelError and its subclasses, MissingExtraError, ParameterError.
    """
    where = _device(device)
    kind, halves = (resolve_dtype(dtype, where), False) if sharded else resolve_format(dtype, where)
    with _no_progress_bars():
        loaded, tokenizer = _read(model, kind, sharded=sharded)
    check_weights(loaded)
    if halves:
        name = too_large(loaded)
        if name is None:
            round_weights(loaded)
        elif dtype == "auto":
            halves = False
        else:
            raise ParameterError("dtype", dtype, f"float32: {name} holds numbers beyond the range of float16")
    if not sharded:
        loaded = loaded.to(where)
    check_architecture(loaded)
    if invariant is None:
        invariant = kind not in (torch.float32, torch.float64)
    product = None if sharded else product_kind(kind, where, invariant=invariant, halves=halves)
    if product is not None:
        fuse_projections(loaded, product)
        pack_linears(loaded, product)
    if where.type == "cpu" and not sharded:
        fuse_norms(loaded)
    target = HFTarget(
        loaded,
        num_slots=num_slots,
        max_model_len=max_model_len,
        eos_token_ids=find_eos_token_ids(loaded, tokenizer),
        invariant=invariant,
        max_num_cached_tokens=max_num_cached_tokens,
        cache_memory=cache_memory,
        width=DEFAULT_WIDTH if width is None else width,
        static=False if sharded else None,
    )
    return target, tokenizer


def _read(model: str | None, dtype: torch.dtype, *, sharded: bool) -> tuple[Any, Any]:
    if not _is_gguf(model):
        with leaves_at_exit():
            return _read_folder(model, dtype, sharded=sharded)
    if sharded:
        raise ParameterError("sharded", sharded, "False for a GGUF file", "give a folder that transformers saved")
    return _read_gguf(model, dtype)


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
        torch.empty(1, device=where)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise ParameterError("device", str(device), f"a device that works here; torch says: {first_line}") from error
    return where


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _is_gguf(model: str | None) -> bool:
    return model is not None and model.endswith(".gguf")


def _read_gguf(model: str | None, dtype: torch.dtype) -> tuple[Any, Any]:
    # Imported where it is needed: other models run without the packages that read GGUF files.
    from draftproof.targets.gguf import read_gguf
    from draftproof.targets.gguf_folder import make_model, make_tokenizer

    path = Path(model or "").expanduser()
    if not path.is_file():
        raise ModelError(f"no GGUF file at {path} (looked in {Path.cwd()} if the path is relative)")
    read = read_gguf(path)
    return make_model(read, dtype), make_tokenizer(read)


def _read_folder(model: str | None, dtype: torch.dtype, *, sharded: bool) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM

    causal_lm: Any = AutoModelForCausalLM
    source = _locate(model)
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(source, "configuration", error) from error
    check_config(config)
    tokenizer = _read_tokenizer(source)
    try:
        loaded, report = causal_lm.from_pretrained(
            source, config=config, dtype=dtype, output_loading_info=True, **(plan_arguments() if sharded else {})
        )
    except ValueError as error:
        if "Unrecognized configuration class" in str(error):
            kind = config.model_type
            raise UnsupportedModelError(f"{source}: a {kind!r} model is no causal language model") from error
        raise _unreadable(source, "weights", error) from error
    except (OSError, RuntimeError, KeyError) as error:
        raise _unreadable(source, "weights", error) from error
    except Exception as error:
        if type(error).__name__ == "SafetensorError":
            raise _unreadable(source, "weights", error) from error
        raise
    _check_report(source, report)
    return loaded, tokenizer


def _check_report(source: str, report: dict[str, Any]) -> None:
    """Transformers fills absent weights with random numbers and says so in a log; here that is an error."""
    for kind, words in (("missing_keys", "lack"), ("mismatched_keys", "have the wrong shape for")):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(kind) or ())
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise ModelError(f"the weights of {source} {words} {', '.join(names[:4])}{more}; get the model anew")


def _locate(model: str | None) -> str:
    """A folder's path, or a hub name."""
    if model is None:
        from draftproof.targets.embedded import embedded_folder

        return str(embedded_folder())
    if not model.strip():
        raise ModelError("no folder is named by an empty text; give a folder, a .gguf file or a hub name")
    path = Path(model).expanduser()
    if path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise ModelError(f"the folder {path} can't be read: permission denied")
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {path} holds no config.json; give a folder that transformers saved")
        return str(path)
    if path.is_file():
        raise ModelError(f"{path} is a file; give a folder, a .gguf file or a hub name")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelError(f"no folder or .gguf file at {model!r}; give a path that exists, or a hub name owner/model")
    return model


def _read_tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # transformers raises many kinds here, ImportError and TypeError among them
        raise _unreadable(source, "tokenizer", error) from error


def _unreadable(source: str, what: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(source).is_dir():
        return ModelError(f"the {what} in {source} can't be read: {reason}")
    from huggingface_hub.constants import HF_HUB_OFFLINE

    tried = "the hub's local cache only (HF_HUB_OFFLINE is set)" if HF_HUB_OFFLINE else "the hub and its local cache"
    return ModelError(
        f"no {what} for {source!r}: there is no such folder here, and {tried} gave: {reason}; "
        "give a folder or a .gguf file, or leave the model out to use the embedded one"
    )


def find_eos_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """What ends a text: the generation configuration's word, then the model's, then the tokenizer's."""
    for source in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(int(token) for token in (ids if isinstance(ids, list | tuple) else [ids]))
    return ()
