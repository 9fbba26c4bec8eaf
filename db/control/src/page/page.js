// The page. It reads `/v1/overview` and shows it. Whatever comes from the server becomes text, never markup: names and
// texts are chosen by tenants.
'use strict';

const POLL_MS = 2000;
const SAMPLES = 150;
const PAST_MS = 30000;
const PAST_PERIODS = 360;
const PAST_TENANTS = 3;
const VIEWS = [['overview', 'Overview'], ['tenants', 'Tenants'], ['extensions', 'Extensions'], ['kills', 'Kills'], ['slow', 'Slow'], ['events', 'Events']];
// What of an overview of the server each view shows; one of a tenant is always whole.
const PARTS = {overview: 'front', tenants: 'tenants', extensions: 'extensions', kills: 'kills', slow: 'counters', events: 'events'};
// Views of one thing, by the kind that their address begins with.
const CLOSE_UPS = ['extension', 'table'];
const PROFILE_S = 10;
const HEAT_S = 20;
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

let caller = {role: '', tenant: null};
let latest = null;
let before = null;
let history = [];
let past = {about: undefined, by: '', read_ms: 0, periods: []};
let paused = false;
let filter = '';
let orders = {};
let timer = 0;
let slow = null;
let closeUp = {path: '', state: '', result: null};

// ---- text and elements ----

/** Text without characters that are invisible, or that turn the direction of writing. */
function shown(value) {
  return String(value ?? '').replace(UNSAFE, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child instanceof Node) made.append(child);
    else if (child !== undefined && child !== null) made.append(document.createTextNode(shown(child)));
  }
  return made;
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function count(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
    if (size >= unit) return (value / (letter === 'k' ? 1e3 : unit)).toFixed(1) + ' ' + letter;
  }
  return size < 10 && size % 1 ? value.toFixed(1) : String(Math.round(value));
}

function bytes(value) {
  for (const [unit, name] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
    if (value >= unit) return (value / unit).toFixed(1) + ' ' + name;
  }
  return Math.round(value || 0) + ' B';
}

function duration(ns) {
  if (!ns) return '–';
  for (const [unit, name] of [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']]) {
    if (ns >= unit) return (ns / unit).toFixed(ns / unit < 10 ? 1 : 0) + ' ' + name;
  }
  return ns + ' ns';
}

function percent(part) {
  return (part * 100).toFixed(part < 0.1 ? 1 : 0) + ' %';
}

function time(ms) {
  return new Date(ms).toISOString().replace('T', ' ').slice(0, 19);
}

function uptime(seconds) {
  const days = Math.floor(seconds / 86400);
  const rest = new Date((seconds % 86400) * 1000).toISOString().slice(11, 19);
  return days ? days + ' d ' + rest : rest;
}

// ---- readings ----

function view() {
  let parts = [];
  try { parts = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent); } catch { parts = []; }
  const [name, about, item] = parts;
  if (name === 'tenant' && about) return {name, tenant: about, item: null};
  if (CLOSE_UPS.includes(name) && about && item) return {name, tenant: about, item};
  return {name: VIEWS.some(([known]) => known === name) ? name : 'overview', tenant: null, item: about || null};
}

async function get(path) {
  const answer = await fetch(path, {credentials: 'same-origin', cache: 'no-store', redirect: 'error'});
  if (answer.status === 401) {
    location.reload();
    throw new Error('signed out');
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.message || 'status ' + answer.status);
  return body;
}

/** Whether the latest reading has what the present view shows. */
function isRead() {
  const {name, tenant} = view();
  return latest !== null && latest.about === tenant && (latest.read.tenant !== null || latest.part === PARTS[name]);
}

/** Growth a second between the two latest readings. */
function rate(now, then, elapsed) {
  return then === undefined || then === null || elapsed <= 0 || now < then ? NaN : (now - then) / elapsed;
}

async function poll() {
  clearTimeout(timer);
  const state = document.getElementById('state');
  const {name, tenant: asked} = view();
  const part = asked === null ? PARTS[name] : null;
  try {
    if ((!paused || !isRead()) && document.visibilityState === 'visible') {
      const read = await get('/v1/overview?' + (asked === null ? 'show=' + part : 'tenant=' + encodeURIComponent(asked)));
      if (view().name === 'slow') slow = await get('/v1/slow');
      if (view().tenant === asked && (asked !== null || PARTS[view().name] === part)) take(read, asked, part);
      if (['overview', 'tenant'].includes(view().name) && await readPast(asked) && view().tenant === asked) draw();
      state.textContent = shown(`${caller.role}${caller.tenant ? ' of ' + caller.tenant : ''}, version ${read.version}, up ${uptime(read.uptime_s)}`);
      state.className = '';
    } else if (paused) {
      state.textContent = 'paused';
    }
  } catch (error) {
    state.textContent = shown('no answer: ' + error.message);
    state.className = 'bad';
  }
  clearTimeout(timer);
  timer = setTimeout(poll, POLL_MS);
}

/** Reads what the server keeps of the last hours by the minute; just after its first start, of the last seconds. Returns whether it is new. */
async function readPast(asked) {
  if (past.about === asked && Date.now() - past.read_ms < PAST_MS) return false;
  const read = async (by) => (await get(`/v1/history?by=${by}&limit=${PAST_PERIODS}${asked === null ? '' : '&tenant=' + encodeURIComponent(asked)}`)).periods;
  let [by, periods] = ['minutes', await read('minutes')];
  if (periods.length < 2) [by, periods] = ['seconds', await read('seconds')];
  // Few seconds are no chart: it is looked at again soon.
  past = {about: asked, by, read_ms: by === 'minutes' ? Date.now() : 0, periods};
  return true;
}

function take(read, asked, part) {
  if (latest && latest.about !== asked) { before = null; history = []; latest = null; }
  if (latest && latest.read.at_ms === read.at_ms) {
    latest = {read, about: asked, part};
    return draw();
  }
  if (latest && read.uptime_s < latest.read.uptime_s) history = [];
  before = latest && read.uptime_s >= latest.read.uptime_s ? latest.read : null;
  latest = {read, about: asked, part};
  history.push(sample(read, before));
  if (history.length > SAMPLES) history.shift();
  draw();
}

function sum(counters, prefix) {
  let total = 0;
  for (const [name, value] of Object.entries(counters)) if (name === prefix || name.startsWith(prefix + '.')) total += value;
  return total;
}

function sample(read, then) {
  const elapsed = then ? (read.at_ms - then.at_ms) / 1000 : 0;
  const of = (name) => then ? rate(sum(read.counters, name), sum(then.counters, name), elapsed) : NaN;
  const prefix = read.tenant ? 'tenant_' : '';
  const busy = then ? read.workers.map((us, at) => rate(us, then.workers[at], elapsed) / 1e6) : [];
  return {
    requests: of(prefix + 'requests'),
    calls: of(prefix + 'invocations_done'),
    kills: of(prefix + 'invocations_killed'),
    cpu: of(prefix + 'invocation_cpu_ns') / 1e9,
    busy: busy.length ? Math.max(...busy) : NaN,
    refused: of(prefix + 'over_quota'),
  };
}

/** Tenants with their rates. */
function tenantRows() {
  const {read} = latest;
  const elapsed = before ? (read.at_ms - before.at_ms) / 1000 : 0;
  const then = new Map((before ? before.tenants : []).map((row) => [row.name, row]));
  return read.tenants.map((row) => {
    const old = then.get(row.name) || {};
    const of = (name) => rate(row[name], old[name], elapsed);
    const beside = row.isolation ? row.isolation.ratio_per_mille : 0;
    const use = row.fullest ? (row.fullest.limit ? row.fullest.used / row.fullest.limit : 0) : 0;
    return {...row, per_s: of('requests'), calls_s: of('calls'), cpu: of('cpu_ns') / 1e9, use, beside};
  });
}

function extensionRows() {
  const {read} = latest;
  const elapsed = before ? (read.at_ms - before.at_ms) / 1000 : 0;
  const key = (row) => JSON.stringify([row.tenant, row.name]);
  const then = new Map((before ? before.extensions : []).map((row) => [key(row), row]));
  return read.extensions.map((row) => {
    const old = then.get(key(row));
    const of = (name) => rate(row.stats[name], old && old.stats[name], elapsed);
    const state = row.suspended ? 'suspended' : row.slowed_to_per_s ? `slowed to ${row.slowed_to_per_s}/s` : 'runs';
    return {...row, calls: row.stats.invocations, killed: row.stats.killed, calls_s: of('invocations'), cpu: of('cpu_us') / 1e6, state};
  });
}

// ---- parts of the page ----

function card(title, value, name) {
  return element('li', {class: 'card'}, element('b', {'data-name': name}, value), element('span', {}, title));
}

function chart(title, lines, format) {
  const all = lines.flatMap((line) => history.map((one) => one[line])).filter((value) => Number.isFinite(value));
  const most = Math.max(...all, 0);
  const top = most > 0 ? most * 1.08 : 1;
  const drawn = lines.map((line, at) => {
    const points = history.map((one, x) => [x, one[line]]).filter(([, y]) => Number.isFinite(y));
    const text = points.map(([x, y]) => `${((x + SAMPLES - history.length) * 300 / (SAMPLES - 1)).toFixed(1)},${(60 - y * 58 / top).toFixed(1)}`);
    return svg('polyline', {class: 'line' + (at + 1), points: text.join(' ')});
  });
  const last = lines.map((line) => history.length ? history[history.length - 1][line] : NaN);
  const now = last.map((value) => Number.isFinite(value) ? format(value) : '–').join(', ');
  const picture = svg('svg', {viewBox: '0 0 300 62', preserveAspectRatio: 'none', role: 'img', 'aria-label': shown(`${title}: now ${now}, at most ${format(most)}`)},
    svg('line', {x1: 0, x2: 300, y1: 60, y2: 60}), ...drawn);
  return element('figure', {}, element('figcaption', {}, element('span', {}, title), element('span', {}, all.length ? `${now} (most ${format(most)})` : '–')), picture);
}

/** The rates of a row of the history. */
const PAST_VALUES = {
  requests: (row, seconds) => row.requests / seconds,
  cpu: (row, seconds) => row.cpu_us / 1e6 / seconds,
  p99: (row) => row.p99_ns || NaN,
  memory: (row) => row.memory_bytes,
};

/** The tenants of the history that have most of something, each with its value in each period. */
function pastLines(kind) {
  const lines = new Map();
  past.periods.forEach((period, at) => {
    const seconds = Math.max(period.length_ms, 1) / 1000;
    for (const row of period.rows) {
      if (row.tenant === null) continue;
      if (!lines.has(row.tenant)) lines.set(row.tenant, Array(past.periods.length).fill(NaN));
      lines.get(row.tenant)[at] = PAST_VALUES[kind](row, seconds);
    }
  });
  const most = (values) => Math.max(0, ...values.filter(Number.isFinite));
  const sum = (values) => values.filter(Number.isFinite).reduce((all, value) => all + value, 0);
  const measured = [...lines].map(([name, values]) => ({name, values, most: most(values), sum: sum(values)}));
  return measured.filter((line) => line.most > 0).sort((a, b) => b.sum - a.sum).slice(0, PAST_TENANTS);
}

/** Tenants over the last hours, each a line, with its name and its most below. */
function pastChart(title, kind, format) {
  const lines = pastLines(kind);
  const top = Math.max(...lines.map((line) => line.most), 0) * 1.08 || 1;
  const [begun, ended] = [past.periods[0].at_ms, past.periods[past.periods.length - 1].at_ms];
  const at = (period) => (300 * (period.at_ms - begun) / Math.max(ended - begun, 1)).toFixed(1);
  const drawn = lines.map(({values}, number) => {
    const points = values.map((value, period) => [past.periods[period], value]).filter(([, value]) => Number.isFinite(value));
    return svg('polyline', {class: `line${number + 1}`, points: points.map(([period, value]) => `${at(period)},${(60 - value * 58 / top).toFixed(1)}`).join(' ')});
  });
  const told = lines.map((line) => `${line.name} at most ${format(line.most)}`).join(', ') || 'nothing';
  const picture = svg('svg', {viewBox: '0 0 300 62', preserveAspectRatio: 'none', role: 'img', 'aria-label': shown(`${title}: ${told}`)},
    svg('line', {x1: 0, x2: 300, y1: 60, y2: 60}), ...drawn);
  const names = lines.map((line, number) => element('li', {}, element('i', {class: `line${number + 1}`}), tenantLink(line.name), ` at most ${format(line.most)}`));
  return element('figure', {'data-past': kind}, element('figcaption', {}, element('span', {}, title)), picture, element('ul', {class: 'names'}, names.length ? names : element('li', {}, 'none')));
}

/** What tenants used over the last hours, also before the last restart. */
function pastCharts() {
  if (past.about !== view().tenant || past.periods.length < 2) return [];
  const [first, last] = [past.periods[0], past.periods[past.periods.length - 1]];
  return [
    element('h2', {}, `From ${time(first.at_ms - first.length_ms)} to ${time(last.at_ms)} (UTC), by ${past.by}`),
    element('div', {class: 'charts', id: 'past'}, pastChart('Requests/s', 'requests', count), pastChart('CPU of calls, of a core', 'cpu', percent),
      pastChart('p99 of the worst second', 'p99', duration), pastChart('Memory', 'memory', bytes)),
  ];
}

/** A table whose columns are [key, title, cell, is a number, is text]. */
function table(id, caption, columns, rows, first) {
  const order = orders[id] || (orders[id] = {key: first, up: false});
  const value = (row) => { const found = row[order.key]; return typeof found === 'number' && Number.isNaN(found) ? -1 : found ?? ''; };
  const sorted = order.key ? [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const ahead = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y));
    return order.up ? ahead : -ahead;
  }) : rows;
  const head = columns.map(([key, title, , isNumber]) => {
    const button = element('button', {type: 'button', 'data-sort': `${id}.${key}`}, title);
    button.addEventListener('click', () => {
      orders[id] = {key, up: order.key === key ? !order.up : !isNumber};
      draw();
      document.querySelector(`[data-sort="${CSS.escape(id + '.' + key)}"]`)?.focus();
    });
    const sort = order.key === key ? (order.up ? 'ascending' : 'descending') : null;
    return element('th', {scope: 'col', class: isNumber ? 'number' : null, 'aria-sort': sort}, button);
  });
  const body = sorted.map((row) => element('tr', {}, columns.map(([, , cell, isNumber, isText]) =>
    element('td', {class: isNumber ? 'number' : isText ? 'text' : null}, cell(row)))));
  if (!body.length) body.push(element('tr', {}, element('td', {class: 'empty', colspan: columns.length}, 'none')));
  return element('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': caption},
    element('table', {id}, element('caption', {}, caption), element('thead', {}, element('tr', {}, head)), element('tbody', {}, body)));
}

function filtered(rows, text) {
  const wanted = filter.toLowerCase();
  return wanted ? rows.filter((row) => text(row).toLowerCase().includes(wanted)) : rows;
}

function filterField() {
  const field = element('input', {type: 'search', id: 'filter', 'aria-label': 'Filter', placeholder: 'filter', maxlength: 64});
  field.value = filter;
  field.addEventListener('input', () => { filter = field.value; draw(); });
  return element('p', {}, field);
}

function tenantLink(name) {
  return element('a', {href: '#/tenant/' + encodeURIComponent(name)}, name);
}

function itemLink(kind, tenant, name) {
  return element('a', {href: `#/${kind}/${encodeURIComponent(tenant)}/${encodeURIComponent(name)}`}, name);
}

function use(quota) {
  if (!quota) return '–';
  const part = quota.limit ? quota.used / quota.limit : 0;
  const text = quota.name.endsWith('bytes') || quota.name.startsWith('table ') ? `${bytes(quota.used)} of ${bytes(quota.limit)}` : `${count(quota.used)} of ${count(quota.limit)}`;
  return element('span', {class: part >= 0.9 ? 'bad' : part >= 0.8 ? 'mind' : null, title: text}, `${quota.name} ${percent(part)}`);
}

// How many times as long requests take beside neighbours.
function besideText(row) {
  if (!row.isolation) return '–';
  const {class: kind, quiet_p99_ns, beside_p99_ns, ratio_per_mille} = row.isolation;
  const ratio = ratio_per_mille / 1000;
  const title = `p99 of ${kind}: ${duration(quiet_p99_ns)} when it is quiet, ${duration(beside_p99_ns)} beside neighbours`;
  return element('span', {class: ratio >= 3 ? 'mind' : null, title}, `${ratio.toFixed(1)} x`);
}

function tenantsTable(rows, caption) {
  return table('tenants', caption, [
    ['name', 'Tenant', (row) => tenantLink(row.name)],
    ['per_s', 'Requests/s', (row) => count(row.per_s), true],
    ['requests', 'Requests', (row) => count(row.requests), true],
    ['calls_s', 'Calls/s', (row) => count(row.calls_s), true],
    ['cpu', 'CPU', (row) => Number.isNaN(row.cpu) ? '–' : percent(row.cpu), true],
    ['p99_ns', 'p99 since created', (row) => duration(row.p99_ns), true],
    ['beside', 'Beside neighbours', (row) => besideText(row), true],
    ['killed', 'Kills', (row) => count(row.killed), true],
    ['over_quota', 'Refused', (row) => count(row.over_quota), true],
    ['dropped_early_per_mille', 'Dropped', (row) => row.dropped_early_per_mille ? element('span', {class: 'bad'}, percent(row.dropped_early_per_mille / 1000)) : '0', true],
    ['record_bytes', 'Records', (row) => bytes(row.record_bytes), true],
    ['use', 'Fullest quota', (row) => use(row.fullest)],
    ['suspended', 'Suspended', (row) => row.suspended ? element('span', {class: 'bad'}, row.suspended) : '0', true],
  ], rows, 'per_s');
}

function extensionsTable(rows, caption) {
  return table('extensions', caption, [
    ['tenant', 'Tenant', (row) => tenantLink(row.tenant)],
    ['name', 'Extension', (row) => itemLink('extension', row.tenant, row.name)],
    ['version', 'Version', (row) => row.version, true],
    ['tier', 'Tier', (row) => row.tier],
    ['state', 'State', (row) => element('span', {class: row.suspended ? 'bad' : row.slowed_to_per_s ? 'mind' : null}, row.state)],
    ['cpu', 'CPU', (row) => Number.isNaN(row.cpu) ? '–' : percent(row.cpu), true],
    ['calls_s', 'Calls/s', (row) => count(row.calls_s), true],
    ['calls', 'Calls', (row) => count(row.calls), true],
    ['p50_ns', 'p50 since loaded', (row) => duration(row.p50_ns), true],
    ['p99_ns', 'p99 since loaded', (row) => duration(row.p99_ns), true],
    ['killed', 'Kills', (row) => count(row.killed), true],
  ], rows, 'cpu');
}

function killsTable(rows, caption) {
  return table('kills', caption, [
    ['at_ms', 'Time (UTC)', (row) => time(row.at_ms)],
    ['tenant', 'Tenant', (row) => tenantLink(row.tenant)],
    ['extension', 'Extension', (row) => `${row.extension} v${row.version}`],
    ['cause', 'Cause', (row) => row.cause],
    ['cpu_us', 'CPU', (row) => duration(row.cpu_us * 1000), true],
    ['wall_us', 'Wall', (row) => duration(row.wall_us * 1000), true],
    ['worker', 'Worker', (row) => row.worker, true],
    ['text', 'Text', (row) => row.text, false, true],
  ], rows, 'at_ms');
}

function eventsTable(rows, caption) {
  return table('events', caption, [
    ['at_ms', 'Time (UTC)', (row) => time(row.at_ms)],
    ['code', 'Event', (row) => row.code],
    ['actor', 'By', (row) => row.from ? `${row.actor}@${row.from}` : row.actor],
    ['tenant', 'Tenant', (row) => row.tenant ? tenantLink(row.tenant) : ''],
    ['subject', 'About', (row) => row.subject || ''],
    ['count', 'Times', (row) => row.count, true],
    ['text', 'Text', (row) => row.text, false, true],
  ], rows, 'at_ms');
}

// ---- what is counted only while somebody looks ----

/** A button that has the server look for some seconds, and what it has found. */
function lookCloser(path, seconds, title, drawn) {
  const mine = closeUp.path === path ? closeUp : {state: '', result: null};
  const isBusy = mine.state === 'busy';
  const button = element('button', {type: 'button', id: 'look', disabled: isBusy}, isBusy ? `${title}: ${seconds} s …` : `${title} for ${seconds} s`);
  button.addEventListener('click', async () => {
    const own = closeUp = {path, state: 'busy', result: null};
    draw();
    try {
      own.result = await get(`${path}?seconds=${seconds}`);
      own.state = '';
    } catch (error) { own.state = error.message; }
    if (closeUp === own) draw();
  });
  const said = mine.state && !isBusy ? element('p', {class: 'bad', role: 'alert'}, mine.state) : null;
  return [element('p', {}, button), said, ...(mine.result ? drawn(mine.result) : [])].filter((part) => part !== null);
}

/** What calls what, with the samples of each: the outermost function has all others in it. */
function callTree(profile) {
  const root = {label: 'all', samples: 0, children: new Map()};
  for (const stack of profile.stacks) {
    const labels = stack.places.map((at) => profile.places[at]).reverse().map((place) => `${place.function} ${place.file}:${place.line}`);
    if (stack.in_host) labels.push('[host call]');
    let node = root;
    node.samples += stack.samples;
    for (const label of labels) {
      if (!node.children.has(label)) node.children.set(label, {label, samples: 0, children: new Map()});
      node = node.children.get(label);
      node.samples += stack.samples;
    }
  }
  return root;
}

/** The boxes of a tree, the root at the bottom: as wide as they have samples. Those too narrow to be seen are left out. */
function flameGraph(root) {
  const boxes = [];
  let depth = 0;
  const place = (node, x, level) => {
    const width = 1000 * node.samples / Math.max(root.samples, 1);
    if (width < 1 || level > 64) return;
    depth = Math.max(depth, level);
    boxes.push([node, x, level, width]);
    let at = x;
    for (const child of [...node.children.values()].sort((a, b) => b.samples - a.samples)) {
      place(child, at, level + 1);
      at += 1000 * child.samples / Math.max(root.samples, 1);
    }
  };
  place(root, 0, 0);
  const height = 20 * (depth + 1);
  const drawn = boxes.map(([node, x, level, width], number) => {
    const title = svg('title', {}, shown(`${node.label}: ${node.samples} samples, ${percent(node.samples / Math.max(root.samples, 1))}`));
    const y = height - 20 * (level + 1);
    const letters = Math.floor(width / 6.6);
    const name = shown(node.label).replace(/ \S*:\d+$/, '');
    const text = letters < 4 ? '' : name.length > letters ? '…' + name.slice(1 - letters) : name;
    return svg('g', {}, title, svg('rect', {x, y, width: Math.max(width - 1, 0.5), height: 19, class: 'flame' + number % 3}), svg('text', {x: x + 3, y: y + 14}, text));
  });
  return element('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Flame graph'},
    svg('svg', {viewBox: `0 0 1000 ${height}`, class: 'flames', role: 'img', width: 1000, height, 'aria-label': `Flame graph of ${root.samples} samples`}, ...drawn));
}

/** The innermost places in the extension's own source, or of all, by their samples. */
function hottestPlaces(profile) {
  const found = new Map();
  for (const stack of profile.stacks) {
    const places = stack.places.map((at) => profile.places[at]);
    const place = places.find((one) => one.file.startsWith('src/')) || places[0];
    const name = place ? `${place.function} ${place.file}:${place.line}` : 'not known';
    found.set(name, (found.get(name) || 0) + stack.samples);
  }
  return [...found].map(([name, samples]) => ({name, samples})).sort((a, b) => b.samples - a.samples).slice(0, 12);
}

function drawnProfile(profile) {
  const all = Math.max(profile.samples, 1);
  return [
    element('p', {id: 'profiled'}, `${profile.samples} samples of version ${profile.version}, ${percent(profile.named / all)} named; meanwhile ${count(profile.calls)} calls ended, with ${duration(profile.cpu_us * 1000)} of CPU, and waited for ${duration(profile.waiting_us * 1000)}.`),
    flameGraph(callTree(profile)),
    table('hottest', 'Lines with most samples', [
      ['name', 'Line', (row) => row.name, false, true], ['samples', 'Samples', (row) => row.samples, true], ['part', 'Part', (row) => percent(row.samples / all), true],
    ], hottestPlaces(profile), 'samples'),
  ];
}

/** Ranges of keys from the first to the last, against seconds: the more accesses, the darker. */
function drawnHeat(heat) {
  const most = Math.max(1, ...heat.ranges.flatMap((range) => range.accesses));
  const rows = heat.ranges.length;
  const cells = heat.ranges.flatMap((range, y) => range.accesses.map((here, x) => {
    const between = range.first === null ? `range ${y + 1} of ${rows}` : `${range.first} to ${range.last}`;
    const title = svg('title', {}, shown(`${between}, second ${x + 1}: ${count(here)}`));
    return svg('rect', {x: x * 1000 / heat.seconds, y: y * 14, width: 1000 / heat.seconds - 1, height: 13, class: 'heat', 'fill-opacity': (here ? 0.08 + 0.92 * here / most : 0.03).toFixed(3)}, title);
  }));
  const sum = heat.accesses.reduce((one, other) => one + other, 0);
  return [
    element('p', {id: 'heated'}, `${count(sum)} accesses in ${heat.seconds} s. Rows are ranges of keys, the first above, with as many different keys each; columns are seconds; the strongest colour is ${count(most)}.`),
    svg('svg', {viewBox: `0 0 1000 ${Math.max(rows, 1) * 14}`, class: 'heats', role: 'img', preserveAspectRatio: 'none', 'aria-label': shown(`Heat map: ${rows} ranges over ${heat.seconds} seconds`)}, ...cells),
  ];
}

function slowTable(rows, caption) {
  return table('slow', caption, [
    ['at_ms', 'Time (UTC)', (row) => element('a', {href: '#/slow/' + row.id}, time(row.at_ms))],
    ['tenant', 'Tenant', (row) => tenantLink(row.tenant)],
    ['operation', 'Request', (row) => row.call ? `${row.operation} ${row.call.extension} v${row.call.version}` : row.operation],
    ['table', 'Table', (row) => row.table || ''],
    ['total_ns', 'Total', (row) => duration(row.total_ns), true],
    ['waiting_ns', 'Waiting', (row) => duration(row.waiting_ns), true],
    ['service_ns', 'Service', (row) => duration(row.service_ns), true],
    ['count', 'Together', (row) => row.count, true],
    ['outcome', 'End', (row) => row.call ? row.call.outcome : ''],
  ], rows, 'at_ms');
}

/** What a request waited for beside its turn, by the names of `waits`. */
const WAITS = [['disk_ns', 'waited for records on the disk'], ['backing_ns', 'waited for records in a backing'], ['log_ns', 'done, waited for the log'],
  ['copies_ns', 'done, waited for copies of the log'], ['backed_ns', 'done, waited for the backing']];

/** Why turns of a call ended, and what it waited for within them, by the names of `pauses`. */
const PAUSES = [['switched', 'past its slice, waited for a turn'], ['reads', 'records came from memory'], ['yields', 'yielded by itself'], ['cold', 'records were not in memory'],
  ['calls', 'turns around calls of other extensions'], ['retries', 'waited to begin anew'], ['locks', 'in its turns, waited for a lock'], ['commits', 'in its turns, waited for a commit']];

/** Where the time of a slow request went. */
function explained(row) {
  const call = row.call;
  const pauses = call && call.pauses ? PAUSES.filter(([field]) => call.pauses[field].count).map(([field, name]) => card(name, `${count(call.pauses[field].count)} times, ${duration(call.pauses[field].ns)}`)) : [];
  const waits = WAITS.filter(([field]) => row.waits && row.waits[field]).map(([field, name]) => card(name, duration(row.waits[field])));
  return [
    element('h2', {}, `Slow request ${row.id}: ${row.operation}${call ? ` ${call.extension} v${call.version}` : ''} of ${row.tenant}`),
    element('ul', {class: 'cards', id: 'explained'},
      card('from arrival to answer', duration(row.total_ns)), card('nothing was done for it', duration(row.waiting_ns)), card(call ? 'CPU' : 'service', duration(row.service_ns)),
      card('worker', row.worker), ...waits,
      ...(call ? [card('until its first turn began', duration(call.queue_ns)), card('until its first turn was over', duration(call.first_turn_ns)), card('turns', call.turns), ...pauses, card('calls of other extensions', call.nested_calls ? `${call.nested_calls}, ${duration(call.nested_cpu_ns)} CPU` : 0),
        card('records read', count(call.reads)), card('begun anew', call.retries ? `${call.retries} times, ${duration(call.pauses.vain_ns)} in vain` : 0)] : [])),
    table('turns', `Whose calls had turns on that worker meanwhile, and whose requests were answered; known for ${duration(row.known_ns)} of it`, [
      ['tenant', 'Tenant', (one) => one.tenant === null ? 'others' : tenantLink(one.tenant)], ['turns', 'Turns', (one) => count(one.turns), true],
      ['cpu_ns', 'CPU', (one) => duration(one.cpu_ns), true], ['requests', 'Requests answered', (one) => count(one.requests), true],
    ], row.turns, 'cpu_ns'),
  ];
}

/** Text whose parts in backticks are commands and names of files. */
function marked(text) {
  return text.split('`').map((part, at) => at % 2 ? element('code', {}, part) : part);
}

function findings(found) {
  if (!found) return [];
  if (!found.length) return [element('h2', {}, 'Findings'), element('p', {class: 'good', id: 'findings'}, 'Nothing that needs a look.')];
  const items = found.map((one) => element('li', {class: one.severity === 'bad' ? 'bad' : null}, element('b', {}, one.title), ' ', marked(one.text), ' ', marked(one.advice)));
  return [element('h2', {}, 'Findings'), element('ul', {class: 'findings', id: 'findings'}, items)];
}

/** Keys that take much of their table's accesses; without the keys themselves. */
function hotKeys(found) {
  if (!found.length) return [];
  return [element('h2', {}, 'Hot keys'), table('hot', 'One key takes so much of its table now', [
    ['tenant', 'Tenant', (row) => tenantLink(row.tenant)],
    ['table', 'Table', (row) => itemLink('table', row.tenant, row.table)],
    ['key_digest', 'Key', (row) => `#${row.key_digest}`],
    ['share', 'Share', (row) => percent(row.share), true],
    ['per_s', 'Requests/s', (row) => count(row.per_s), true],
  ], found, 'per_s')];
}

// ---- views ----

const DRAW = {
  overview() {
    const {read} = latest;
    const counters = read.counters;
    if (read.tenant) return DRAW.tenant();
    return [
      element('ul', {class: 'cards'},
        card('tenants', read.tenants_in_all, 'tenants'), card('extensions', read.extensions_in_all, 'extensions'),
        card('records', count(counters.records), 'records'), card('bytes of records', bytes(counters.record_bytes), 'record_bytes'),
        card('resident memory', bytes(counters.resident_bytes)), card('calls under way', count(counters.invocations_live)),
        card('connections', count(counters.connections), 'connections'), card('suspended extensions', counters.extensions_suspended, 'extensions_suspended'),
        card('kills so far', count(sum(counters, 'invocations_killed')), 'kills'), card('throttled flows', counters.throttled, 'throttled')),
      findings(read.findings),
      element('h2', {}, 'Last five minutes'),
      element('div', {class: 'charts'},
        chart('Requests/s', ['requests'], count), chart('Calls/s', ['calls'], count), chart('CPU of calls, of a core', ['cpu'], percent),
        chart('Busiest worker', ['busy'], percent), chart('Kills/s', ['kills'], count)),
      pastCharts(),
      hotKeys(read.hot),
      element('h2', {}, 'Busiest tenants'), tenantsTable(tenantRows().slice(0, 10), 'The ten with most requests'),
      element('h2', {}, 'Extensions with most CPU time'), extensionsTable(extensionRows().slice(0, 10), 'The ten with most CPU time'),
      element('h2', {}, 'Latest kills'), killsTable(read.kills.slice(0, 5), 'The latest five'),
    ].flat();
  },
  tenants() {
    const rows = filtered(tenantRows(), (row) => row.name);
    return [element('h2', {}, 'Tenants'), filterField(), tenantsTable(rows, `${rows.length} of ${latest.read.tenants_in_all}`)];
  },
  extensions() {
    const rows = filtered(extensionRows(), (row) => `${row.tenant} ${row.name} ${row.state}`);
    return [element('h2', {}, 'Extensions'), filterField(), extensionsTable(rows, `${rows.length} of ${latest.read.extensions_in_all}`)];
  },
  kills() {
    const rows = filtered(latest.read.kills, (row) => `${row.tenant} ${row.extension} ${row.cause} ${row.text}`);
    return [element('h2', {}, 'Kills'), filterField(), killsTable(rows, 'The latest')];
  },
  events() {
    const rows = filtered(latest.read.events, (row) => `${row.code} ${row.actor} ${row.tenant || ''} ${row.subject || ''} ${row.text}`);
    return [element('h2', {}, 'Events'), filterField(), eventsTable(rows, 'The latest')];
  },
  slow() {
    if (!slow) return [element('p', {class: 'empty'}, 'reading …')];
    const one = slow.requests.find((row) => String(row.id) === view().item);
    const rows = filtered(slow.requests, (row) => `${row.tenant} ${row.operation} ${row.table || ''} ${row.call ? row.call.extension : ''}`);
    const caption = slow.threshold_us ? `From ${duration(slow.threshold_us * 1000)} on; ${count(slow.left_out)} more were not kept` : 'None is kept: slow_us is 0';
    return [...(one ? explained(one) : []), element('h2', {}, 'Slow requests'), filterField(), slowTable(rows, caption)];
  },
  extension() {
    const {tenant, item} = view();
    const row = extensionRows().find((one) => one.name === item);
    if (!row) return [element('h2', {}, 'Extension ', item), element('p', {class: 'empty'}, latest.read.tenant ? 'It is not loaded.' : 'reading …')];
    const path = `/v1/tenants/${encodeURIComponent(tenant)}/extensions/${encodeURIComponent(item)}/profile`;
    return [
      element('h2', {}, 'Extension ', item, ' of ', tenantLink(tenant)), extensionsTable([row], 'Now'),
      element('h2', {}, 'Where its time goes'), ...lookCloser(path, PROFILE_S, 'Profile', drawnProfile),
      element('h2', {}, 'Kills'), killsTable(latest.read.kills.filter((one) => one.extension === item), 'The latest'),
    ];
  },
  table() {
    const {tenant, item} = view();
    const row = latest.read.tables.find((one) => one.name === item);
    if (!row) return [element('h2', {}, 'Table ', item), element('p', {class: 'empty'}, latest.read.tenant ? 'It is not there.' : 'reading …')];
    const path = `/v1/tenants/${encodeURIComponent(tenant)}/tables/${encodeURIComponent(item)}/heat`;
    return [
      element('h2', {}, 'Table ', item, ' of ', tenantLink(tenant)),
      element('ul', {class: 'cards'}, card('records', count(row.records)), card('bytes', bytes(row.bytes)), card('quota', bytes(row.quota_bytes)), card('mode', row.mode)),
      element('h2', {}, 'Which keys are used'), ...lookCloser(path, HEAT_S, 'Count accesses', drawnHeat),
    ];
  },
  tenant() {
    const {read} = latest;
    if (!read.tenant) return [element('p', {class: 'empty'}, 'reading …')];
    const row = tenantRows()[0];
    const tenant = read.tenant;
    return [
      element('h2', {}, 'Tenant ', tenant.name),
      element('ul', {class: 'cards'},
        card('requests', count(row.requests), 'requests'), card('p99 of all requests since it was created', duration(row.p99_ns)), card('kills', count(row.killed), 'kills'),
        card('p99 beside neighbours over p99 when quiet', besideText(row)),
        card('refused by a quota', count(row.over_quota)), card('bytes of records', bytes(row.record_bytes), 'record_bytes'),
        card('calls under way', tenant.running), card('code', tenant.code), card('home worker', tenant.home_worker)),
      element('div', {class: 'charts'}, chart('Requests/s', ['requests'], count), chart('Calls/s', ['calls'], count),
        chart('CPU of calls, of a core', ['cpu'], percent), chart('Refused/s', ['refused'], count)),
      ...pastCharts(),
      ...hotKeys(read.hot),
      element('h2', {}, 'Latency'),
      table('latency', 'Since the tenant was created, or its extension loaded', [
        ['class', 'Kind', (one) => one.extension === null ? one.class : `${one.class} ${one.extension} v${one.version}`],
        ['count', 'Count', (one) => count(one.total.count), true],
        ['p50', 'p50', (one) => duration(one.total.p50_ns), true], ['p90', 'p90', (one) => duration(one.total.p90_ns), true],
        ['p99', 'p99', (one) => duration(one.total.p99_ns), true], ['p999', 'p99.9', (one) => duration(one.total.p999_ns), true],
        ['waiting', 'Waiting p99', (one) => duration(one.waiting.p99_ns), true], ['service', 'Service p99', (one) => duration(one.service.p99_ns), true],
        ['sending', 'Sending p99', (one) => one.sending.count ? duration(one.sending.p99_ns) : '-', true],
      ], read.latency, null),
      element('h2', {}, 'Quotas'),
      table('quotas', 'What is used of what may be', [
        ['name', 'Quota', (one) => one.name], ['used', 'Used', (one) => one.name.endsWith('bytes') ? bytes(one.used) : count(one.used), true],
        ['limit', 'Limit', (one) => one.name.endsWith('bytes') ? bytes(one.limit) : count(one.limit), true],
        ['part', '', (one) => element('meter', {min: 0, max: 1, high: 0.9, value: one.limit ? one.used / one.limit : 0, 'aria-label': one.name})],
      ], read.quotas, null),
      element('h2', {}, 'Tables'),
      table('tables', 'Its own', [
        ['name', 'Table', (one) => itemLink('table', tenant.name, one.name)], ['mode', 'Mode', (one) => one.mode], ['records', 'Records', (one) => count(one.records), true],
        ['bytes', 'Bytes', (one) => bytes(one.bytes), true], ['quota_bytes', 'Quota', (one) => bytes(one.quota_bytes), true],
        ['evictions', 'Evicted', (one) => count(one.evictions), true], ['refusals', 'Refused', (one) => count(one.refusals), true],
      ], read.tables, null),
      element('h2', {}, 'Extensions'), extensionsTable(extensionRows(), `${read.extensions_in_all} loaded`),
      element('h2', {}, 'Kills'), killsTable(read.kills, 'The latest'),
      element('h2', {}, 'Events'), eventsTable(read.events, 'The latest'),
    ];
  },
};

function draw() {
  const {name} = view();
  const nav = document.getElementById('views');
  const links = VIEWS.map(([known, title]) => element('a', {href: '#/' + known, 'aria-current': known === name ? 'page' : null}, title));
  if (document.activeElement?.parentElement !== nav) nav.replaceChildren(...links);
  if (!latest) return;
  const main = document.getElementById('main');
  // What has the keyboard, and where tables are scrolled to, stays over a new reading.
  const active = document.activeElement;
  const selector = active?.id ? '#' + CSS.escape(active.id) : active?.dataset?.sort ? `[data-sort="${CSS.escape(active.dataset.sort)}"]` : active?.getAttribute?.('href') && main.contains(active) ? `main a[href="${CSS.escape(active.getAttribute('href'))}"]` : active?.matches?.('main .wide') ? `main .wide[aria-label="${CSS.escape(active.getAttribute('aria-label'))}"]` : null;
  // Of several links to the same place it is the one that had it.
  const place = selector ? [...document.querySelectorAll(selector)].indexOf(active) : -1;
  const caret = active?.id === 'filter' ? active.selectionStart : null;
  const scrolled = new Map([...main.querySelectorAll('.wide')].map((part) => [part.getAttribute('aria-label'), part.scrollLeft]));
  main.replaceChildren(...(isRead() ? DRAW[name]() : [element('p', {class: 'empty'}, 'reading …')]));
  for (const part of main.querySelectorAll('.wide')) part.scrollLeft = scrolled.get(part.getAttribute('aria-label')) || 0;
  if (selector && document.activeElement === document.body) {
    const found = document.querySelectorAll(selector);
    const again = found[place] || found[0];
    again?.focus({preventScroll: true});
    if (caret !== null && again?.setSelectionRange) again.setSelectionRange(caret, caret);
  }
}

addEventListener('hashchange', () => { filter = ''; document.getElementById('main').focus({preventScroll: true}); draw(); poll(); });
addEventListener('visibilitychange', () => { if (document.visibilityState === 'visible') poll(); });
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === 'Escape' && isTyping) { event.target.value = ''; filter = ''; event.target.blur(); draw(); return; }
  if (isTyping) return;
  if (event.key === '/') { event.preventDefault(); document.getElementById('filter')?.focus(); }
  if (event.key === 'p') { paused = !paused; poll(); }
  const at = Number(event.key);
  if (at >= 1 && at <= VIEWS.length) location.hash = '#/' + VIEWS[at - 1][0];
});

draw();
get('/v1/caller').then((found) => { caller = found; }).catch(() => {}).finally(poll);
