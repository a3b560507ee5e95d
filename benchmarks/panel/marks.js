// Notes when a cell was executed, when its answer came, and when a panel was painted.
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
      }
      if (/"_esm"|"packed"/.test(text)) { // the first panel of a kernel brings the code that all share
        window.marks.bytes = (window.marks.bytes ?? 0) + (data.byteLength ?? data.length);
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
