"""Scripts: what the page runs before anything else."""

from __future__ import annotations

# Lets a view be closed as a hidden browser tab does; and notes the sizes of messages.
LOOK = r"""
window.look = 'visible';
Object.defineProperty(document, 'visibilityState', {get: () => window.look});
window.sizes = null;
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (data) {
  if (!this.noted) {
    this.noted = true;
    this.addEventListener('message', ({data}) => {
      if (window.sizes === null) return;
      const text = typeof data === 'string' ? data : new TextDecoder().decode(data);
      const kind = /"type":\s*"(tick|hello)"/.exec(text)?.[1];
      if (kind) window.sizes.push([kind, data.byteLength ?? data.length]);
    });
  }
  return send.call(this, data);
};
"""
# Notes when a cell was executed, when its answer came, and when a panel was painted.
MARKS = r"""
window.marks = {};
const mark = name => { window.marks[name] ??= performance.now(); };
const send = WebSocket.prototype.send;
const textOf = data => typeof data === 'string' ? data : new TextDecoder().decode(data);
WebSocket.prototype.send = function (data) {
  if (!this.noted) {
    this.noted = true;
    this.addEventListener('message', ({data}) => {
      const text = textOf(data);
      if (text.includes('widget-view+json')) mark('display');
      if (text.includes('"_esm"')) {
        mark('state');
        window.marks.bytes ??= data.byteLength ?? data.length;
      }
    });
  }
  if (textOf(data).includes('"execute_request"')) window.marks.execute = performance.now();
  return send.call(this, data);
};
new MutationObserver(() => {
  const panel = document.querySelector('.nbpipe-panel');
  if (panel && window.marks.found === undefined) {
    mark('found');
    requestAnimationFrame(() => setTimeout(() => mark('paint')));
  }
}).observe(document, {childList: true, subtree: true});
"""
# Notes when keys were pressed.
KEYS = r"""
window.keys = [];
addEventListener('keydown', event => window.keys.push(event.timeStamp), true);
"""
