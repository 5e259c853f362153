// When the page is drawn: in an animation frame, only if something changed, and never so often that it stutters.

const SHORTEST_PAUSE = 200;
// Drawing takes a twelfth of the time at most.
const SHARE = 12;

// Returns a function that asks for a drawing; `draw` is called when it is time. `now` asks for it at once.
export function throttled(draw) {
  let isAsked = false;
  let isWaiting = false;
  let notBefore = 0;

  const frame = () => {
    isWaiting = false;
    if (!isAsked) return;
    isAsked = false;
    const start = performance.now();
    draw();
    const took = performance.now() - start;
    notBefore = start + Math.max(SHORTEST_PAUSE, took * SHARE);
  };
  return (isUrgent = false) => {
    isAsked = true;
    if (isUrgent) notBefore = 0;
    if (isWaiting && !isUrgent) return;
    isWaiting = true;
    const left = notBefore - performance.now();
    if (left > 0) setTimeout(() => requestAnimationFrame(frame), left);
    else requestAnimationFrame(frame);
  };
}
