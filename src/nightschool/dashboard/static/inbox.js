// Keys of the inbox and of its list, and the next item at once: it is fetched beforehand and shown while an act is sent.
// What carries data-key is the one table of keys: it draws the hints, takes the keys and fills the sheet.
(() => {
  const root = () => document.getElementById("inbox");
  const OFF = "nightschool-keys-off";
  const FIELDS = "input:not([type=hidden]), textarea, select";
  let ready = null; // the next page: { url, html }
  let queue = Promise.resolve(); // acts arrive in the order in which they were done

  const prefetch = async () => {
    const next = root()?.querySelector("a[rel=next]");
    if (ready?.url !== next?.href) ready = null;
    if (!next) return;
    const reply = await fetch(next.href).catch(() => null);
    const html = reply?.ok ? await reply.text() : null;
    if (html && root()?.querySelector("a[rel=next]") === next) ready = { url: next.href, html };
  };

  const settle = (moves = true) => {
    root()?.querySelector("#show-keys")?.removeAttribute("hidden");
    const target = root()?.querySelector(".message.selected, .message .chip.dashed")?.closest(".message");
    if (moves && target && matchMedia("(min-width: 821px)").matches) target.scrollIntoView({ block: "center" });
    prefetch();
  };

  const show = (html, url) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const made = page.getElementById("inbox");
    if (!made) return location.assign(url);
    const moves = made.dataset.item !== root().dataset.item;
    root().replaceWith(document.adoptNode(made));
    document.title = page.title;
    const shown = new URL(url);
    for (const name of ["did", "item"]) shown.searchParams.delete(name);
    if (shown.href !== location.href) history.pushState(null, "", shown);
    root().focus({ preventScroll: true });
    settle(moves);
  };

  const flash = (text, undo) => {
    const place = root().querySelector("#flash");
    place.textContent = text;
    if (undo) place.append(" ", undo);
    document.getElementById("said").textContent = text;
  };

  // The way back from an act, built from the form that did it.
  const undoing = (form) => {
    const back = form.cloneNode(false);
    back.action = form.action.replace(/[^/]*$/, "undo");
    back.dataset.said = "Taken back.";
    back.dataset.stays = "";
    for (const name of ["form_token", "state", "agent"]) back.append(form.elements[name].cloneNode());
    const button = document.createElement("button");
    Object.assign(button, { className: "plain", innerHTML: "Undo <kbd>z</kbd>" });
    button.dataset.key = "z";
    button.dataset.label = "Take back";
    back.append(button);
    return back;
  };

  const send = async (form) => {
    const body = new URLSearchParams(new FormData(form));
    const from = location.href;
    const ahead = !("stays" in form.dataset) && ready !== null;
    if (ahead) {
      show(ready.html, ready.url);
      flash(form.dataset.said, undoing(form));
    }
    queue = queue.then(() => fetch(form.action, { method: "POST", body }).catch(() => null));
    const reply = await queue;
    const html = reply ? await reply.text() : "";
    if (!reply?.ok) {
      const page = new DOMParser().parseFromString(html, "text/html");
      const why = [...page.querySelectorAll("main h1, main .lead")].slice(0, 2).map((part) => part.textContent);
      const back = document.createElement("a");
      Object.assign(back, { href: from, textContent: "Back to it" });
      return flash(why.join(" ") || "The server did not answer. Nothing was changed.", back);
    }
    const { pathname } = new URL(reply.url);
    if (!pathname.startsWith("/feedback/")) return location.assign(reply.url);
    const writes = root().contains(document.activeElement) && document.activeElement.matches(FIELDS);
    if (ahead && (writes || pathname !== location.pathname)) return; // somebody has gone on meanwhile
    show(html, reply.url);
    document.getElementById("said").textContent = form.dataset.said;
  };

  document.addEventListener("submit", (event) => {
    if (!root() || !event.target.dataset.said) return;
    event.preventDefault();
    send(event.target);
  });

  const rows = (step) => {
    const all = [...document.querySelectorAll("[data-row]")];
    if (!all.length) return false;
    const place = all.indexOf(document.activeElement);
    all[Math.min(all.length - 1, Math.max(0, place + step))].focus();
    return true;
  };

  const sheet = () => {
    const off = localStorage.getItem(OFF) !== null;
    const dialog = document.createElement("dialog");
    dialog.className = "keys";
    dialog.setAttribute("aria-label", "Keys");
    const list = document.createElement("dl");
    const seen = new Set();
    for (const part of root()?.querySelectorAll("[data-key]") ?? []) {
      if (seen.has(part.dataset.key)) continue;
      seen.add(part.dataset.key);
      const name = document.createElement("dt");
      const told = document.createElement("dd");
      name.textContent = part.dataset.key;
      told.textContent = part.dataset.label;
      list.append(name, told);
    }
    const more = document.createElement("p");
    more.className = "meta";
    more.textContent = "In a field: Ctrl Enter saves, Esc leaves.";
    const toggle = document.createElement("button");
    toggle.textContent = off ? "Turn single keys on" : "Turn single keys off";
    toggle.addEventListener("click", () => {
      if (off) localStorage.removeItem(OFF);
      else localStorage.setItem(OFF, "1");
      dialog.close();
    });
    dialog.append(list, more, toggle);
    dialog.addEventListener("close", () => {
      dialog.remove();
      root()?.focus({ preventScroll: true });
    });
    document.body.append(dialog);
    dialog.showModal();
  };

  const press = (part) => {
    if (part.matches("summary")) {
      part.parentElement.open = true;
      const field = part.parentElement.querySelector("textarea") ?? part.parentElement.querySelector(FIELDS);
      field.focus();
      field.select?.();
    } else if (part.id === "show-keys") sheet();
    else if (part.rel === "next" && ready?.url === part.href) show(ready.html, ready.url);
    else part.click();
  };

  const inField = (event, field) => {
    if (event.key === "Escape") {
      field.closest("details")?.removeAttribute("open");
      root().focus({ preventScroll: true });
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey || field.matches("select"))) {
      event.preventDefault();
      field.form.requestSubmit();
    } else if (field.matches("select[size]") && (event.key === "j" || event.key === "k")) {
      event.preventDefault();
      const last = field.options.length - 1;
      field.selectedIndex = Math.min(last, Math.max(0, field.selectedIndex + (event.key === "j" ? 1 : -1)));
    }
  };

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.altKey || document.querySelector("dialog[open]")) return;
    const field = event.target.closest?.(FIELDS);
    if (field) return root()?.contains(field) ? inField(event, field) : undefined;
    if (event.ctrlKey || event.metaKey || localStorage.getItem(OFF) !== null) return;
    if (!root()) {
      if ((event.key === "j" || event.key === "k") && rows(event.key === "j" ? 1 : -1)) event.preventDefault();
      return;
    }
    const part = root().querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (!part || event.repeat) return;
    event.preventDefault();
    press(part);
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#show-keys")) sheet();
  });
  addEventListener("popstate", () => location.reload());
  if (root()) settle();
})();
