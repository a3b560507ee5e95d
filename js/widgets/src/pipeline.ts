/** The buttons of a pipeline, as an anywidget module. */

import { widgetModule } from "./anywidget";
import { Starter, StarterView } from "./starter";

export default widgetModule(
  (model) => new Starter(model),
  (starter, sections) => new StarterView(starter, sections),
);
