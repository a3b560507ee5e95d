/** The buttons of a pipeline, as an anywidget module. */

import { type Cleanup, identity, type Model } from "./anywidget";
import { Sections } from "./sections";
import { Starter, StarterView } from "./starter";

interface Widget {
  readonly starter: Starter;
  readonly sections: Sections;
}

const widgets = new WeakMap<object, Widget>();

function widgetOf(model: Model): Widget {
  const key = identity(model);
  let widget = widgets.get(key);
  if (widget === undefined) {
    widget = { starter: new Starter(model), sections: new Sections() };
    widgets.set(key, widget);
  }
  return widget;
}

function initialize({ model }: { model: Model }): Cleanup {
  const { starter } = widgetOf(model);
  return () => {
    starter.dispose();
    widgets.delete(identity(model));
  };
}

function render({ model, el }: { model: Model; el: HTMLElement }): Cleanup {
  const { starter, sections } = widgetOf(model);
  const view = new StarterView(starter, sections);
  el.append(view.el);
  return () => view.dispose();
}

export default { initialize, render };
