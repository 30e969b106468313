// Runs the script of a worker in a hidden frame where a page is opened as a file: browsers start no Worker there, and the
// search of the site needs one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<body></body>";
      this.scope = new Promise(resolve => frame.addEventListener("load", () => {
        const scope = frame.contentWindow;
        scope.postMessage = data => setTimeout(() => this.dispatchEvent(new MessageEvent("message", {data})));
        const script = scope.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(scope);
        scope.document.body.append(script);
      }, {once: true}));
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then(scope => scope.dispatchEvent(new scope.MessageEvent("message", {data})));
    }
  };
}
