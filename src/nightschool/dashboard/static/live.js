// Keeps the page's live region fresh: every 5 s while something runs, else every 30 s, not while hidden.
// An unchanged page answers 204 and nothing moves; nothing is swapped under a selection or an open control.
(() => {
  const region = () => document.getElementById("live");
  if (!region()) return;
  let timer = 0;

  const busy = (live) => {
    const picked = getSelection();
    const inside = picked && !picked.isCollapsed && live.contains(picked.anchorNode);
    return inside || live.querySelector("input:focus, select:focus, .canvas:focus") !== null;
  };

  const look = async () => {
    const live = region();
    if (document.hidden || !live || busy(live)) return;
    const url = new URL(live.dataset.poll || location.href, location.href);
    const reply = await fetch(url, { headers: { "X-Nightschool-Seen": live.dataset.seen } });
    if (reply.status !== 200) return;
    const text = await reply.text();
    if (busy(live)) return;
    const open = [...live.querySelectorAll("details[id][open]")].map((part) => part.id);
    htmx.swap(live, text, { swapStyle: "outerHTML" }, { select: "#live" });
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  };

  const wait = () => {
    clearTimeout(timer);
    if (document.hidden) return;
    timer = setTimeout(() => look().catch(() => {}).finally(wait), 1000 * Number(region()?.dataset.every || 30));
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else look().catch(() => {}).finally(wait);
  });
  wait();
})();
