/** Texts about runs and kernels. */

import type { Row } from "@nbpipe/protocol";
import { RUNS_PROTOCOL } from "@nbpipe/protocol";
import {
  formatAmount,
  formatClock,
  formatProgress,
  isolated,
  isolatedNames,
} from "@nbpipe/widgets/src/format";
import type { KernelRuns } from "./kernel-runs";

/** The name of a run's variable, else its chain. */
export function nameOf({ variable, title }: Row): string {
  return variable || isolatedNames(title);
}

/** Whether a call of a run hangs. */
export function isHung({ state, severity }: Row): boolean {
  return state === "running" && severity === "error";
}

/** The icon and the name of a run's state. */
export function stateOf(row: Row): readonly [string, string] {
  const isAmiss = row.severity === "error" || row.severity === "warning";
  return [isAmiss ? "failed" : row.state, isHung(row) ? "hung" : row.state];
}

/** "120 of 500 batches". */
export function progressOf({ done, total, unit }: Row): string {
  return formatProgress(done, total, unit);
}

/** "12.3 k batches/s". */
export function rateOf({ rate, unit }: Row): string {
  return `${formatAmount(rate)} ${unit}/s`;
}

/** "1:23 left", or "" where it is not known. */
export function leftOf({ left_s }: Row): string {
  return left_s === null ? "" : `${formatClock(left_s)} left`;
}

/** "12.3 k batches/s · bottleneck: decode", and how many more run. */
export function briefOf(row: Row, others: number): string {
  const limit = isHung(row)
    ? " · a call hangs"
    : row.limit === ""
      ? ""
      : ` · bottleneck: ${isolated(row.limit)}`;
  const more = others > 0 ? ` (+${others})` : "";
  return `${rateOf(row)}${limit}${more}`;
}

/** Why there is no run to show; "" where there is one. */
export function whyEmpty(isOpen: boolean, runs: KernelRuns | null): string {
  if (!isOpen) {
    return "No notebook is open.";
  }
  if (runs === null) {
    return "This notebook has no kernel.";
  }
  switch (runs.phase) {
    case "looking":
      return "Connecting to the kernel. One that is busy answers when its cell has ended.";
    case "absent":
      return "No run in this kernel yet: it has not imported nbpipe.";
    case "greeted":
      return runs.isSilent
        ? "Connecting: the kernel is busy and has not answered yet. It is asked again."
        : "Connecting.";
    case "older":
      return `Update nbpipe in the kernel: ${theirs(runs)}, this sidebar protocol ${RUNS_PROTOCOL}.`;
    case "newer":
      return `Update jupyter-nbpipe where JupyterLab runs: ${theirs(runs)}, this sidebar protocol ${RUNS_PROTOCOL}.`;
    case "dead":
      return "The kernel is dead. Start it again to see its runs.";
    case "live":
      return runs.rows.length === 0
        ? "No run in this kernel yet: start one with pipe.start(), or iterate a pipeline."
        : "";
  }
}

function theirs({ version, protocol }: KernelRuns): string {
  const which = version === "" ? "it" : `nbpipe ${version} there`;
  return `${which} speaks protocol ${protocol}`;
}
