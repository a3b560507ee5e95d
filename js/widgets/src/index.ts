/** The live panel of a run, as an anywidget module. */

import { type Cleanup, identity, type Model } from "./anywidget";
import { Sections } from "./sections";
import { Session } from "./session";
import { View } from "./view";

interface Widget {
  readonly session: Session;
  readonly sections: Sections;
}

const widgets = new WeakMap<object, Widget>();

function widgetOf(model: Model): Widget {
  const key = identity(model);
  let widget = widgets.get(key);
  if (widget === undefined) {
    widget = { session: new Session(model), sections: new Sections() };
    widgets.set(key, widget);
  }
  return widget;
}

function initialize({ model }: { model: Model }): Cleanup {
  const { session } = widgetOf(model);
  return () => {
    session.dispose();
    widgets.delete(identity(model));
  };
}

function render({ model, el }: { model: Model; el: HTMLElement }): Cleanup {
  const { session, sections } = widgetOf(model);
  const view = new View(session, sections);
  el.append(view.el);
  return () => view.dispose();
}

export default { initialize, render };
