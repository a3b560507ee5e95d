/** The icon: three stages, one behind the other. */

import { LabIcon } from "@jupyterlab/ui-components";

const DRAWN = "M2 9h4v6h-4zM10 6.5h4v11h-4zM18 9h4v6h-4zM6 11.25h4v1.5h-4zM14 11.25h4v1.5h-4z";

export const pipelineIcon = new LabIcon({
  name: "nbpipe:pipeline",
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
    <path class="jp-icon3" fill="#616161" d="${DRAWN}"/></svg>`,
});
