// Charts that answer the pointer: what the nearest mark stands for, and zoom along the axis. Drag over a range or press + to
// zoom in, arrows to move, double-click or 0 for everything; Ctrl and the wheel zoom at the pointer. The page is whole without it.
(() => {
  const tip = document.body.appendChild(document.createElement('div'));
  tip.className = 'tip';
  tip.hidden = true;
  tip.setAttribute('role', 'status');

  const show = (text, event) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + 'px';
    tip.style.top = (event.clientY + 18 + box.height < innerHeight ? event.clientY + 18 : event.clientY - box.height - 10) + 'px';
  };

  const duration = (seconds) => {
    if (!seconds) return '0';
    const [size, unit] = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs'], [1e-9, 'ns']].find(([size]) => Math.abs(seconds) >= size * 0.9999) || [1e-9, 'ns'];
    return Number((seconds / size).toPrecision(6)) + ' ' + unit;
  };

  // Round values between two ends: on a logarithmic axis 1, 2, 5 and their decades once it spans enough of them.
  const round = (low, high, log, whole) => {
    if (log && high / low > 12) {
      const found = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
        for (const factor of high / low > 2000 ? [1] : [1, 2, 5]) {
          const value = factor * 10 ** decade;
          if (value >= low && value <= high) found.push(value);
        }
      }
      return found;
    }
    const rough = (high - low) / 5, decade = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].map((factor) => factor * decade).find((step) => step >= rough * 0.999);
    if (whole) step = Math.max(1, Math.ceil(step));
    const found = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high * (1 + 1e-9) || number * step <= high; number++) {
      found.push(Number((number * step).toPrecision(12)));
    }
    return found;
  };

  const chart = (svg) => {
    const {scale, sign, low, high} = svg.dataset, log = scale === 'log';
    const [left, width] = svg.dataset.plot.split(' ').map(Number);
    const plot = svg.querySelector('.plot'), axis = svg.querySelector('.axis');
    const model = axis.querySelector('.tick');
    const value = (share) => log ? low * (high / low) ** share : +low + share * (high - low);
    const share = (at) => log ? Math.log(at / low) / Math.log(high / low) : (at - low) / (high - low);
    let from = 0, to = 1;
    const moved = (x) => left + ((x - left) / width - from) / (to - from) * width;

    const marks = [...plot.querySelectorAll('circle,rect,line,text,polyline')].map((element) => {
      const told = element.querySelector('title');
      const at = ['cx', 'x', 'x1', 'x2'].filter((name) => element.hasAttribute(name)).map((name) => [name, +element.getAttribute(name)]);
      const points = element.getAttribute('points');
      const mark = {element, at, wide: +element.getAttribute('width'), text: told && told.textContent,
                    points: points && points.split(' ').map((pair) => pair.split(',').map(Number))};
      if (told) told.remove();
      return mark;
    });
    const draw = () => {
      for (const {element, at, wide, points} of marks) {
        for (const [name, x] of at) element.setAttribute(name, moved(x).toFixed(1));
        if (element.tagName === 'rect') element.setAttribute('width', (wide / (to - from)).toFixed(1));
        if (points) element.setAttribute('points', points.map(([x, y]) => moved(x).toFixed(1) + ',' + y).join(' '));
      }
      if (!model) return;
      axis.querySelectorAll('.tick').forEach((tick) => tick.remove());
      for (const tick of round(value(from), value(to), log, scale === 'whole')) {
        const x = left + (share(tick) - from) / (to - from) * width, made = model.cloneNode(true);
        const line = made.querySelector('line'), label = made.querySelector('text');
        line.setAttribute('x1', x);
        line.setAttribute('x2', x);
        label.setAttribute('x', x);
        label.setAttribute('text-anchor', x - left < 24 ? 'start' : x - left > width - 24 ? 'end' : 'middle');
        label.textContent = sign === 's' ? duration(tick) : sign + tick;
        axis.prepend(made);
      }
    };
    const zoom = (a, b) => {
      const span = Math.min(1, Math.max(b - a, 1e-4));
      from = Math.min(Math.max(a, 0), 1 - span);
      to = from + span;
      draw();
    };
    const where = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

    let begun = null, moving = false;
    const chosen = document.createElementNS(svg.namespaceURI, 'rect');
    chosen.setAttribute('class', 'chosen-range');
    svg.addEventListener('pointerdown', (event) => { if (event.button === 0) begun = where(event); });
    svg.addEventListener('pointermove', (event) => {
      const point = where(event);
      if (begun && (moving || Math.abs(point.x - begun.x) > 6)) {
        if (!moving) { moving = true; svg.setPointerCapture(event.pointerId); plot.append(chosen); }
        chosen.setAttribute('x', Math.min(begun.x, point.x));
        chosen.setAttribute('width', Math.abs(point.x - begun.x));
        chosen.setAttribute('y', 0);
        chosen.setAttribute('height', '100%');
        return show('', event);
      }
      let best = null, near = 18;
      for (const {element, text} of marks) {
        if (!text) continue;
        const get = (name) => +element.getAttribute(name);
        const circle = element.tagName === 'circle';
        const x = circle ? get('cx') : Math.min(Math.max(point.x, get('x')), get('x') + get('width'));
        const y = circle ? get('cy') : Math.min(Math.max(point.y, get('y')), get('y') + get('height'));
        const distance = Math.hypot(point.x - x, point.y - y) + (circle ? 0 : 6);
        if (distance < near) { near = distance; best = text; }
      }
      show(best, event);
    });
    const end = (event) => {
      if (moving) {
        const at = [begun.x, where(event).x].map((x) => from + (x - left) / width * (to - from)).sort((a, b) => a - b);
        chosen.remove();
        zoom(...at);
      }
      begun = null;
      moving = false;
    };
    svg.addEventListener('pointerup', end);
    svg.addEventListener('pointercancel', () => { chosen.remove(); begun = null; moving = false; });
    svg.addEventListener('pointerleave', (event) => show('', event));
    svg.addEventListener('dblclick', () => zoom(0, 1));
    const around = (centre, factor) => {
      const wide = (to - from) * factor, at = (centre - from) / (to - from);
      zoom(centre - at * wide, centre + (1 - at) * wide);
    };
    svg.addEventListener('wheel', (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      around(from + (where(event).x - left) / width * (to - from), event.deltaY > 0 ? 1.25 : 0.8);
    }, {passive: false});
    svg.addEventListener('keydown', (event) => {
      const middle = (from + to) / 2, step = (to - from) / 4;
      const done = {'+': () => around(middle, 0.5), '=': () => around(middle, 0.5), '-': () => around(middle, 2), '0': () => zoom(0, 1),
                    'ArrowLeft': () => zoom(from - step, to - step), 'ArrowRight': () => zoom(from + step, to + step)}[event.key];
      if (done) { event.preventDefault(); done(); }
    });
  };
  document.querySelectorAll('svg[data-low]').forEach(chart);
  document.documentElement.classList.add('scripted');
})();
