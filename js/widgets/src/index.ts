/** The live panel of a run, as an anywidget module. */

import { widgetModule } from "./anywidget";
import { Session } from "./session";
import { View } from "./view";

export default widgetModule(
  (model) => new Session(model),
  (session, sections) => new View(session, sections),
);
