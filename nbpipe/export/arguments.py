"""Arguments: plain options of stages as source."""

from __future__ import annotations

from .. import operations as ops
from ..claims import LocalStore
from ..devices import Target
from ..draws import Claim
from ..stage import Stage
from .uses import Use, refusal


def quoted(text: str) -> str:
    """Write a text in double quotes where that needs no more escapes."""
    single = repr(text)
    return f'"{single[1:-1]}"' if single[0] == "'" and '"' not in text else single


def claim_arguments(stage: Stage, spec: Claim, use: Use) -> list[str]:
    """Write the arguments of a claim.

    Raises:
        ExportError: it has a store of this process.
    """
    arguments = [f"chunk={spec.chunk}"]
    if isinstance(spec.store, LocalStore):
        arguments.append("store=nbpipe.ranks.LocalStore()")
    elif spec.store is not None:
        raise refusal(
            f"the store of {stage.name!r} is a live {type(spec.store).__name__}; leave store out, "
            "and call torch.distributed.init_process_group before the first epoch",
            use,
        )
    return [*arguments, *([f"name={quoted(stage.name)}"] if stage.named else [])]


def target_of(stage: Stage, use: Use) -> Target:
    """Give the device of a stage.

    Raises:
        ExportError: it uses a stream of this process.
    """
    assert stage.placement is not None
    target = stage.placement.given
    assert isinstance(target, Target)
    if target.stream is not None:
        raise refusal(
            f"the stream of {stage.name!r} is a live {type(target.stream).__name__}; leave stream "
            "out, and the run makes its own",
            use,
        )
    return target


def policy_arguments(policy: ops.FailurePolicy) -> list[str]:
    """Write what happens to items whose call failed."""
    retry, arguments = policy.retry, []
    if retry is not None:
        inner = [str(retry.times)]
        inner += [f"backoff_s={retry.backoff_s!r}"] if retry.backoff_s else []
        inner += [f"then={quoted(retry.then)}"] if retry.then != "raise" else []
        arguments.append(f"on_error=nbpipe.Retry({', '.join(inner)})")
    elif policy.skips:
        arguments.append('on_error="skip"')
    if policy.max_failures is not None:
        arguments.append(f"max_failures={policy.max_failures!r}")
    return arguments
