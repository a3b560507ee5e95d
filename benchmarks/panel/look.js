// Lets a view be closed as a hidden browser tab does; and notes the sizes of messages.
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
