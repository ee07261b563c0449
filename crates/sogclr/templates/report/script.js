"use strict";
// Reads curves off, draws the maps, and on a live page looks for news. Without it the page still shows everything but the map.
function startCharts() {
  for (const figure of document.querySelectorAll(".chart")) {
    const svg = figure.querySelector("svg"), pointer = svg.querySelector(".pointer"), output = figure.querySelector("output");
    const lines = [...svg.querySelectorAll(".line")].map(line => ({
      colour: line.classList[1],
      name: line.dataset.name,
      values: line.dataset.values.split(",").filter(Boolean).map(pair => pair.split(" ")),
      places: (line.getAttribute("points") || "").split(" ").filter(Boolean).map(pair => Number(pair.split(",")[0])),
    }));
    const longest = lines.reduce((a, b) => (b.places.length > a.places.length ? b : a), lines[0]);
    let at = longest.places.length - 1;
    const nearest = (places, x) => places.reduce((best, place, k) => (Math.abs(place - x) < Math.abs(places[best] - x) ? k : best), 0);
    const show = x => {
      pointer.setAttribute("x1", x);
      pointer.setAttribute("x2", x);
      pointer.setAttribute("visibility", "visible");
      output.textContent = "";
      for (const line of lines.filter(line => line.places.length)) {
        const [epoch, value] = line.values[nearest(line.places, x)];
        const item = document.createElement("div"), key = document.createElement("i");
        key.className = "key " + line.colour;
        item.title = line.name;
        item.append(key, ` ${value} at ${epoch}`);
        output.append(item);
      }
    };
    const hide = () => { pointer.setAttribute("visibility", "hidden"); output.textContent = ""; };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      show(longest.places[nearest(longest.places, (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width)]);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      at = Math.max(0, Math.min(longest.places.length - 1, at + move));
      show(longest.places[at]);
    });
  }
}

const classColour = (label, count) => (label < 0 ? "#888" : `hsl(${(label * 360 / Math.max(count, 1) + 210) % 360} 70% ${label % 2 ? 58 : 46}%)`);

function startMap(section) {
  const canvas = section.querySelector("canvas"), hover = section.querySelector(".hover"), sprites = section.querySelector(".sprites");
  const tile = Number(section.dataset.tile), columns = Number(section.dataset.columns);
  const points = JSON.parse(section.querySelector("script").textContent);
  const classes = points.reduce((most, point) => Math.max(most, point[2] + 1), 0);
  const keys = [...section.querySelectorAll(".key")];
  for (const key of keys) key.style.background = classColour(Number(key.dataset.class), classes);
  let chosen = -1, width = 0, height = 0;
  const place = ([x, y]) => [width / 2 + x / 1000 * (width / 2 - 14), height / 2 - y / 1000 * (height / 2 - 14)];
  const draw = () => {
    const scale = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [width * scale, height * scale];
    pen.scale(scale, scale);
    for (const point of points) {
      const [x, y] = place(point);
      pen.fillStyle = classColour(point[2], classes);
      pen.beginPath();
      pen.arc(x, y, 3, 0, 7);
      pen.fill();
    }
    if (chosen < 0) return;
    const [x, y] = place(points[chosen]);
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.lineWidth = 2;
    pen.strokeRect(x - 6, y - 6, 12, 12);
  };
  const choose = index => {
    chosen = index;
    hover.hidden = index < 0;
    draw();
    if (index < 0) return;
    const [x, y] = place(points[index]), shown = 96 / tile, legend = keys[points[index][2]];
    const picture = hover.querySelector("i");
    picture.style.backgroundImage = `url(${sprites.src})`;
    picture.style.backgroundSize = `${columns * 96}px auto`;
    picture.style.backgroundPosition = `${-(index % columns) * tile * shown}px ${-Math.floor(index / columns) * tile * shown}px`;
    hover.querySelector("span").textContent = points[index][3] + (legend ? " · " + legend.parentNode.textContent.trim() : "");
    hover.style.left = Math.max(0, Math.min(width - 122, x + 12)) + "px";
    hover.style.top = Math.max(0, Math.min(height - hover.offsetHeight, y + 12)) + "px";
  };
  const at = event => {
    const box = canvas.getBoundingClientRect();
    let best = -1, least = 400;
    points.forEach((point, index) => {
      const [x, y] = place(point), far = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (far < least) [best, least] = [index, far];
    });
    choose(best);
  };
  canvas.addEventListener("pointermove", at);
  canvas.addEventListener("pointerdown", at);
  canvas.addEventListener("pointerleave", () => choose(-1));
  canvas.addEventListener("blur", () => choose(-1));
  canvas.addEventListener("keydown", event => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!way) return;
    event.preventDefault();
    if (chosen < 0) return choose(0);
    // The nearest one that lies more that way than aside.
    const from = points[chosen];
    let best = chosen, least = Infinity;
    points.forEach((point, index) => {
      const step = [point[0] - from[0], point[1] - from[1]], ahead = step[0] * way[0] + step[1] * way[1];
      const aside = Math.abs(step[0] * way[1]) + Math.abs(step[1] * way[0]);
      if (ahead > 0 && aside <= ahead && ahead + aside < least) [best, least] = [index, ahead + aside];
    });
    choose(best);
  });
  new ResizeObserver(draw).observe(canvas);
}

function start() {
  startCharts();
  document.querySelectorAll(".map").forEach(startMap);
}

// Replaces what has changed, and leaves the page alone while something in it is in use.
async function lookForNews() {
  const status = document.getElementById("live");
  try {
    const reply = await fetch(location.href, { cache: "no-store" });
    const news = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (!main.contains(document.activeElement) && news && news.innerHTML !== window.lastNews) {
      const open = [...main.querySelectorAll("details")].map(details => details.open);
      window.lastNews = news.innerHTML;
      main.innerHTML = news.innerHTML;
      main.querySelectorAll("details").forEach((details, k) => { details.open = open[k]; });
      start();
    }
  } catch {
    if (status) status.textContent = "the program that serves this page has ended; this is what was known last";
  }
}

start();
if ("live" in document.body.dataset) setInterval(lookForNews, 3000);
