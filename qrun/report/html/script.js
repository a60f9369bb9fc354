const value = (row, column) => row.cells[column].textContent;
const UNITS = {us: 1e-3, ms: 1, s: 1e3, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3};
const number = (text) => {
  const [, digits, unit] = text.replaceAll(",", "").match(/^[~<]?(-?[\d.]+(?:e[-+]?\d+)?) ?([a-zA-Z]*)/) || [];
  return parseFloat(digits) * (UNITS[unit] || 1);
};
const matches = (text, words) => words.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    if (![...body.rows].some((row) => value(row, column))) return;
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", head.getAttribute("aria-sort") || "none");
    button.addEventListener("click", () => {
      const first = head.dataset.first || "ascending", other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
      const numeric = head.classList.contains("n");
      const compare = (a, b) => {
        if (!numeric) return sign * value(a, column).localeCompare(value(b, column), "en", {numeric: true});
        const x = number(value(a, column)), y = number(value(b, column));
        return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
      };
      for (const each of heads) if (each.ariaSort) each.setAttribute("aria-sort", each === head ? order : "none");
      body.append(...[...body.rows].sort(compare));
    });
  });
}
for (const box of document.querySelectorAll(".filter")) {
  const rows = [...document.getElementById(box.dataset.table).querySelectorAll("tbody tr")];
  const columns = box.dataset.columns.split(" "), shown = box.querySelector("output");
  box.hidden = false;
  box.querySelector("input").addEventListener("input", (event) => {
    for (const row of rows) {
      row.hidden = !matches(columns.map((column) => value(row, column)).join(" "), event.target.value);
    }
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });
}
const told = (part) => part.querySelector("title").textContent;
for (const figure of document.querySelectorAll("figure.picture")) {
  const links = [...figure.querySelectorAll("svg a")], line = figure.querySelector(".told");
  const named = new Map(links.map((link) => [link.getAttribute("href").slice(2), link]));
  const reads = (link) => (link.dataset.reads || "").split(" ").map((id) => named.get(id)).filter(Boolean);
  const readers = new Map(links.map((link) => [link, []]));
  for (const link of links) for (const read of reads(link)) readers.get(read).push(link);
  line.hidden = false;
  links.forEach((link, place) => link.setAttribute("tabindex", place ? -1 : 0));
  const point = (event) => {
    const part = event.target.closest("svg a, svg g");
    if (!part) return;
    line.textContent = told(part);
    for (const link of links) link.classList.remove("near");
    for (const link of [...reads(part), ...readers.get(part) || []]) link.classList.add("near");
    if (event.type !== "focusin") return;
    for (const link of links) if (link.tabIndex === 0) link.setAttribute("tabindex", -1);
    part.setAttribute("tabindex", 0);
  };
  const lead = (link) => {
    link.focus({preventScroll: true});
    link.querySelector("rect, circle").scrollIntoView({block: "nearest", inline: "nearest"});
  };
  figure.addEventListener("pointerover", point);
  figure.addEventListener("focusin", point);
  figure.addEventListener("keydown", (event) => {
    const own = links.indexOf(event.target), open = (link) => !link.classList.contains("dim");
    if (own < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const after = links.slice(own + 1).find(open), before = links.slice(0, own).findLast(open);
    const next = {
      ArrowDown: after, ArrowUp: before, ArrowRight: readers.get(links[own])[0] || after,
      ArrowLeft: reads(links[own]).at(-1) || before, Home: links.find(open), End: links.findLast(open),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    lead(next);
  });
  const box = figure.querySelector(".scroll"), tools = figure.querySelector(".tools");
  if (!box) continue;
  const svg = box.querySelector("svg"), width = svg.width.baseVal.value, height = svg.height.baseVal.value;
  let zoom = 1, dragged = false;
  const scale = (factor, x = box.clientWidth / 2, y = box.clientHeight / 2) => {
    const fit = Math.min(box.clientWidth / width, box.clientHeight / height, 1);
    const next = factor ? Math.min(Math.max(zoom * factor, fit), 3) : fit, grown = next / zoom;
    const [left, top] = [(box.scrollLeft + x) * grown - x, (box.scrollTop + y) * grown - y];
    zoom = next;
    svg.style.width = `${width * zoom}px`;
    box.scrollTo(left, top);
  };
  tools.hidden = false;
  box.style.height = `${box.offsetHeight}px`;
  for (const button of tools.querySelectorAll("button")) button.onclick = () => scale(+button.dataset.zoom);
  box.addEventListener("keydown", (event) => {
    const factor = {"+": 1.25, "=": 1.25, "-": 0.8, "0": 0}[event.key];
    if (factor !== undefined && !event.ctrlKey && !event.metaKey) scale(factor);
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const {left, top} = box.getBoundingClientRect();
    scale(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - left, event.clientY - top);
  }, {passive: false});
  box.addEventListener("pointerdown", (down) => {
    const {scrollLeft, scrollTop} = box, drag = ({clientX, clientY}) => {
      const [x, y] = [down.clientX - clientX, down.clientY - clientY];
      dragged ||= Math.abs(x) + Math.abs(y) > 4;
      if (dragged) box.scrollTo(scrollLeft + x, scrollTop + y);
    };
    dragged = false;
    if (down.pointerType !== "mouse" || down.button) return;
    addEventListener("pointermove", drag);
    addEventListener("pointerup", () => removeEventListener("pointermove", drag), {once: true});
  });
  box.addEventListener("dragstart", (event) => event.preventDefault());
  box.addEventListener("click", (event) => dragged && event.preventDefault());
  const find = tools.querySelector("input"), count = tools.querySelector("output");
  find.addEventListener("input", () => {
    for (const link of links) link.classList.toggle("dim", !matches(told(link), find.value));
    const found = links.filter((link) => !link.classList.contains("dim"));
    count.textContent = find.value && `${found.length} of ${links.length}`;
    found[0]?.querySelector("rect").scrollIntoView({block: "nearest", inline: "nearest"});
  });
  find.addEventListener("keydown", (event) => {
    const first = links.find((link) => !link.classList.contains("dim"));
    if (event.key === "Enter" && first) lead(first);
  });
  tools.querySelector("select")?.addEventListener("change", (event) => figure.dataset.by = event.target.value);
}
