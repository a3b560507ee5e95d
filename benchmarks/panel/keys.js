// Notes when keys were pressed.
window.keys = [];
addEventListener('keydown', event => window.keys.push(event.timeStamp), true);
