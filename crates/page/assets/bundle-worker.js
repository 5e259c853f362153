// Draws many thin lines into a picture, away from the page's thread. See `bundle.js`.

const OPAQUE_LINES = 6;

self.onmessage = ({ data }) => {
  const { place, width, height, colour, points, ends } = data;
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(width)), Math.max(1, Math.round(height)));
  const context = canvas.getContext("2d");
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.globalAlpha = Math.max(0.16, Math.min(0.8, Math.sqrt(OPAQUE_LINES / ends.length)));
  let at = 0;
  for (const end of ends) {
    context.beginPath();
    for (; at < end; at += 2) context.lineTo(points[at], points[at + 1]);
    context.stroke();
  }
  const picture = canvas.transferToImageBitmap();
  self.postMessage({ place, picture }, [picture]);
};
