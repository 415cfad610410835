// The one script. It shows times where the browser is, and takes in what moves: the server sends the page's main part, and
// the part that is there is changed in place, so that the focus, an open form and what was typed stay.

const two = (number) => String(number).padStart(2, '0');

const showTimes = (root) => {
  for (const time of root.querySelectorAll('time[datetime]')) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const text = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    if (time.textContent !== text) time.textContent = text;
  }
};

// What belongs to whoever looks, and not to the server.
const isOwn = (element, name) =>
  (element.localName === 'details' && name === 'open') || (element.localName === 'input' && name === 'value');

const changeAttributes = (there, wanted) => {
  for (const { name } of [...there.attributes]) {
    if (!wanted.hasAttribute(name) && !isOwn(there, name)) there.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (there.getAttribute(name) !== value && !isOwn(there, name)) there.setAttribute(name, value);
  }
};

const isSame = (there, wanted) =>
  there.nodeType === wanted.nodeType && there.nodeName === wanted.nodeName && (there.id ?? '') === (wanted.id ?? '');

const change = (there, wanted) => {
  if (there.nodeType !== Node.ELEMENT_NODE) {
    if (there.nodeValue !== wanted.nodeValue) there.nodeValue = wanted.nodeValue;
    return;
  }
  changeAttributes(there, wanted);
  changeChildren(there, wanted);
};

const changeChildren = (there, wanted) => {
  let at = there.firstChild;
  for (const next of [...wanted.childNodes]) {
    let found = at;
    while (found && !isSame(found, next)) found = found.nextSibling;
    if (!found) {
      there.insertBefore(next, at);
      continue;
    }
    while (at !== found) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    change(found, next);
    at = found.nextSibling;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
};

const main = document.getElementById('main');
const live = document.getElementById('live');

const say = (is, text) => {
  live.dataset.is = is;
  if (live.textContent !== text) live.textContent = text;
};

const follow = (address) => {
  const source = new EventSource(address);
  source.addEventListener('main', ({ data }) => {
    const wanted = new DOMParser().parseFromString(`<main>${data}</main>`, 'text/html').querySelector('main');
    showTimes(wanted);
    changeChildren(main, wanted);
    say('on', 'live');
  });
  source.addEventListener('same', () => say('on', 'live'));
  source.addEventListener('trouble', ({ data }) => say('off', data.length > 40 ? 'no answer' : data));
  source.addEventListener('error', () => say('off', 'not live'));
  return source;
};

showTimes(document);
const address = document.body.dataset.live;
if (address) {
  let source = follow(address);
  // A page that is put away costs the server nothing.
  document.addEventListener('visibilitychange', () => {
    source.close();
    if (!document.hidden) source = follow(address);
  });
}
