"""Arguments: plain options of stages as source."""

from __future__ import annotations

from .. import operations as ops


def quoted(text: str) -> str:
    """Write a text in double quotes where that needs no more escapes."""
    single = repr(text)
    return f'"{single[1:-1]}"' if single[0] == "'" and '"' not in text else single


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
