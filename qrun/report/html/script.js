const value = (row, column) => row.cells[column].textContent;
const UNITS = {us: 1e-3, ms: 1, s: 1e3, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3};
const number = (text) => {
  const [, digits, unit] = text.replaceAll(",", "").match(/^[~<]?(-?[\d.]+(?:e[-+]?\d+)?) ?([a-zA-Z]*)/) || [];
  return parseFloat(digits) * (UNITS[unit] || 1);
};
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
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = columns.map((column) => value(row, column)).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });
}
