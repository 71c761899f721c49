"use strict";
// What all charts use: the data of the page, colours of the theme, a tip, and units.
const page = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const redraws = [];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function time(us) {
  const units = [["s", 1e6], ["ms", 1e3], ["us", 1]];
  for (const [unit, scale] of units) if (Math.abs(us) >= scale) return +(us / scale).toPrecision(3) + " " + unit;
  return us ? +(us * 1e3).toPrecision(3) + " ns" : "0";
}

function bytes(value) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  for (const [unit, scale] of units) if (Math.abs(value) >= scale) return (value / scale).toFixed(1) + " " + unit;
  return Math.round(value) + " B";
}

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const below = event.clientY + 16 + box.height < innerHeight;
  tip.style.left = Math.max(left, 4) + "px";
  tip.style.top = (below ? event.clientY + 16 : event.clientY - box.height - 10) + "px";
}

function hideTip() {
  tip.hidden = true;
}

// The theme: that of the system until the button is pressed.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  for (const redraw of redraws) redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
addEventListener("resize", () => redraws.forEach((redraw) => redraw()));
