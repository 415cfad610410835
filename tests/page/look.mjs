// Looks at the page in Chromium, and prints a line for each check: `ok WHAT` or `not ok WHAT`, with why before it. Started by run.

import { execFile, spawn } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const { PLAIN, PLAIN_CLIENTS, RULED, RULED_CLIENTS, TLS, CERTS, VIEWER, FORCER, HOLDFAST, PICTURES, SHOTS } = process.env;
const require = createRequire(`${process.argv[2]}/`);
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const SIZES = [400, 1024, 1600];
const SCHEMES = ['light', 'dark'];
const PAGES = {
  now: '/', queues: '/?order=queue', locks: '/locks', lock: '/lock?name=jobs/nightly', deadlock: '/lock?name=orders/42', sessions: '/sessions', scopes: '/scopes', history: '/history',
};

// Those that docs/seeing.md shows.
const PICTURED = ['now', 'lock', 'deadlock', 'history'];

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const complaints = [];

// A browser of its own; what it complains of, and where it goes, is noted.
const open = async (origin, options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1024, height: 900 }, timezoneId: 'UTC', ...options });
  const page = await context.newPage();
  page.on('console', (said) => { if (said.type() === 'error') complaints.push(`console: ${said.text()}`); });
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => { complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => { if (!request.url().startsWith(origin)) complaints.push(`request to ${request.url()}`); });
  page.setDefaultTimeout(10_000);
  return { context, page };
};

const check = async (what, look) => {
  try {
    await look();
    console.log(`ok ${what}`);
  } catch (error) {
    console.log(String(error.stack ?? error).split('\n').slice(0, 6).join('\n'));
    console.log(`not ok ${what}`);
  }
};

const is = (found, wanted, what = '') => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what} is ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
};

const holdfast = (...args) => new Promise((done, failed) => {
  execFile(HOLDFAST, args, (error, out, err) => (error ? failed(Object.assign(error, { stderr: err })) : done(out)));
});

await check('a lock that is taken appears, and goes when it is given back', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(`${PLAIN}/?prefix=new/`);
  await page.getByText('No such lock is held or waited for.').waitFor();
  const job = spawn(HOLDFAST, ['--endpoints', PLAIN_CLIENTS, 'lock', 'new/one', '--label', 'newcomer', '--', 'sleep', '3']);
  await page.getByRole('link', { name: 'new/one' }).waitFor();
  await page.getByRole('link', { name: 'newcomer' }).waitFor();
  is(await page.locator('#live').textContent(), 'live');
  await page.getByText('No such lock is held or waited for.').waitFor();
  job.kill();
  await context.close();
});

await check('a queue grows on the page while it grows', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(`${PLAIN}/?order=queue`);
  const row = page.locator('tr', { has: page.getByRole('link', { name: 'hot/queue' }) });
  const count = async () => Number(await row.locator('.count').textContent());
  const before = await count();
  await page.waitForFunction(
    (least) => [...document.querySelectorAll('tr')].some((row) => row.textContent.includes('hot/queue') && Number(row.querySelector('.count')?.textContent) > least),
    before,
  );
  await context.close();
});

await check('what is typed and what is open stays while the page moves', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(`${PLAIN}/lock?name=hot/queue`);
  await page.getByText('Take it away from its holders').click();
  await page.getByLabel('Reason, which they are told').fill('half a rea');
  const length = async () => Number((await page.locator('#queue .count').textContent()).replace(/\D/g, ''));
  const before = await length();
  await page.waitForFunction((least) => Number(document.querySelector('#queue .count').textContent.replace(/\D/g, '')) !== least, before, { timeout: 5_000 })
    .catch(() => { if (before < 60) throw new Error(`the queue stood at ${before}`); });
  await page.waitForTimeout(1_500);
  is(await page.getByLabel('Reason, which they are told').inputValue(), 'half a rea');
  is(await page.evaluate(() => document.activeElement.id), 'force-text', 'the focus');
  await context.close();
});

await check('without rules nobody is asked to log in', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(PLAIN);
  await page.getByRole('heading', { name: 'Now' }).waitFor();
  is(await page.getByRole('link', { name: 'Log in' }).count(), 0);
  await page.goto(`${PLAIN}/login`);
  await page.getByText('Nobody has to log in here').waitFor();
  await context.close();
});

await check('a deadlock is drawn as a circle, and called one', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(`${PLAIN}/lock?name=orders/42`);
  await page.getByText('Deadlock: they wait for each other in a circle (orders/42 → orders/43 → orders/42)').waitFor();
  const steps = await page.locator('.chain li a').allTextContents();
  is(steps, ['orders/42', 'billing', 'orders/43', 'shipping', 'orders/42']);
  is(await page.locator('.chain li.back').count(), 1);
  await context.close();
});

await check('from why it waits to the culprit are three clicks', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(PLAIN);
  await page.getByRole('link', { name: 'Longest queues' }).click();
  await page.getByRole('link', { name: 'reports/q3' }).click();
  await page.getByText('In the end all wait for backup@db1').waitFor();
  await page.locator('.culprit a').click();
  await page.getByRole('heading', { name: /Session \d+/ }).waitFor();
  await page.getByText('backup@db1').waitFor();
  await context.close();
});

await check('names are text, whatever is in them', async () => {
  const { context, page } = await open(PLAIN);
  await page.goto(`${PLAIN}/locks`);
  const names = await page.locator('.locks th[scope=row] a').allTextContents();
  for (const name of ['<script>alert(1)</script>', 'משימות/לילה']) is(names.includes(name), true, name);
  is(await page.locator('main script, main b:has-text("bold")').count(), 0);
  await page.getByRole('link', { name: '<script>alert(1)</script>' }).click();
  is(await page.locator('h1 bdi').textContent(), '<script>alert(1)</script>');
  await page.goto(`${PLAIN}/lock?name=config/leader`);
  is(await page.locator('.value').textContent(), '{"leader": "db1"} <i>');
  await context.close();
});

await check('what happened to a lock stands on its page', async () => {
  const { context, page } = await open(PLAIN);
  await holdfast('--endpoints', PLAIN_CLIENTS, 'lock', 'past/one', '--label', 'gone', '--note', 'short', '--', 'true');
  await page.goto(`${PLAIN}/lock?name=past/one`);
  const row = page.locator('.past tbody tr').first();
  await row.getByText('held for 0 s, then released').waitFor();
  is(await row.getByRole('link', { name: 'gone' }).count(), 1);
  await context.close();
});

const force = async (page, name, typed) => {
  await page.goto(`${RULED}/lock?name=${name}`);
  await page.getByText('Take it away from its holders').click();
  await page.getByLabel('Reason, which they are told').fill('stuck');
  await page.locator('#force-typed').fill(typed);
  await page.getByRole('button', { name: 'Take it away' }).click();
};

await check('without a token a ruled node asks for one, and with it shows what it allows', async () => {
  const { context, page } = await open(RULED);
  await page.goto(`${RULED}/lock?name=jobs/nightly`);
  await page.getByRole('heading', { name: 'Not allowed' }).waitFor();
  await page.goto(`${RULED}/login?at=/lock?name=jobs/nightly`);
  await page.getByLabel('Token').fill('hft_wrong');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('That token is not valid.').waitFor();
  await page.getByLabel('Token').fill(VIEWER);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('heading', { name: 'jobs/nightly' }).waitFor();
  await page.getByText('token:looker').waitFor();
  const [cookie] = await context.cookies();
  is([cookie.httpOnly, cookie.sameSite], [true, 'Strict']);
  is(await page.evaluate(() => document.cookie), '');
  await force(page, 'jobs/nightly', 'jobs/nightly');
  await page.getByRole('heading', { name: 'Not allowed' }).waitFor();
  await page.goto(RULED);
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.getByRole('link', { name: 'Log in' }).waitFor();
  await context.close();
});

await check('who comes with a certificate needs no token', async () => {
  const clientCertificates = [{ origin: TLS, certPath: `${CERTS}/night.pem`, keyPath: `${CERTS}/night.key` }];
  const night = await open(TLS, { ignoreHTTPSErrors: true, clientCertificates });
  await night.page.goto(TLS);
  await night.page.getByText('cn:night').waitFor();
  await night.page.getByRole('heading', { name: 'Now' }).waitFor();
  await night.context.close();
  const nobody = await open(TLS, { ignoreHTTPSErrors: true });
  await nobody.page.goto(TLS);
  await nobody.page.getByRole('heading', { name: 'Not allowed' }).waitFor();
  await nobody.context.close();
});

await check('a forced release needs the right, and the name once more', async () => {
  const { context, page } = await open(RULED);
  await page.goto(`${RULED}/login`);
  await page.getByLabel('Token').fill(FORCER);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('token:ops').waitFor();
  await force(page, 'jobs/nightly', 'jobs/nightl');
  await page.getByText('nothing was done').waitFor();
  await force(page, 'jobs/nightly', 'jobs/nightly');
  await page.getByText('Done: its holders are told').waitFor();
  await page.getByText('Nobody.').waitFor({ timeout: 20_000 });
  await page.getByText('force: stuck').waitFor();
  await context.close();
});

await check('a lock is frozen, thawed and given a limit, each behind its name', async () => {
  const { context, page } = await open(PLAIN);
  const lock = `${PLAIN}/lock?name=kept/one`;
  const done = async (act, open, text, said) => {
    await page.goto(lock);
    if (open) await page.locator(`#act-${act} summary`).click();
    if (text) await page.locator(`#${act}-text`).fill(text);
    await page.locator(`#${act}-typed`).fill('kept/one');
    await page.locator(`#act-${act} button`).click();
    await page.getByText(`Done: ${said}`).waitFor();
  };
  const tried = () => holdfast('--endpoints', PLAIN_CLIENTS, 'try', 'kept/one', '--', 'true').then(() => 'granted', (error) => error.stderr);
  await done('freeze', true, 'moving house', 'names that begin with it are frozen');
  is((await tried()).includes('moving house'), true, 'why it is not granted');
  await done('thaw', false, '', 'it is thawed');
  is(await tried(), 'granted');
  await done('limit', true, '3', 'its limit is 3');
  is(JSON.parse(await holdfast('--endpoints', PLAIN_CLIENTS, '--json', 'inspect', 'kept/one')).limit.permits, 3, 'the limit');
  await context.close();
});

await check('a page from elsewhere changes nothing', async () => {
  const { context, page } = await open('http://');
  const elsewhere = createServer((_, answer) => {
    answer.setHeader('content-type', 'text/html');
    answer.end(`<form method=post action="${PLAIN}/force"><input name=name value=orders/42><input name=typed value=orders/42><input name=text value=x><input name=form_token value=0><button>go</button></form>`);
  });
  await new Promise((listening) => { elsewhere.listen(0, '127.0.0.1', listening); });
  await page.goto(`http://127.0.0.1:${elsewhere.address().port}/`);
  const [answer] = await Promise.all([page.waitForResponse((response) => response.url().endsWith('/force')), page.getByRole('button').click()]);
  is(answer.status(), 403);
  is(await answer.text(), 'refused: the request comes from another page\n');
  elsewhere.close();
  await context.close();
  // What the browser says of a refused page is no fault of it.
  complaints.length = 0;
});

for (const width of [400, 1024]) {
  await check(`nothing jumps while numbers change, at ${width} px`, async () => {
    const { context, page } = await open(PLAIN, { viewport: { width, height: 900 } });
    await page.goto(PLAIN);
    await page.evaluate(() => {
      window.shifted = [];
      const moved = ({ value, sources }) => ({ value, what: sources.map(({ node }) => (node?.outerHTML ?? node?.textContent)?.slice(0, 120)) });
      new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted.push(moved(entry)); }).observe({ type: 'layout-shift' });
    });
    // Twelve updates. One row that grows by a line while hot/queue's queue comes and goes is 0.007.
    await page.waitForTimeout(12_000);
    const shifted = await page.evaluate(() => window.shifted);
    if (shifted.reduce((sum, { value }) => sum + value, 0) > 0.005) throw new Error(`the layout shifted: ${JSON.stringify(shifted)}`);
    await context.close();
  });
}

for (const scheme of SCHEMES) {
  await check(`axe-core finds no serious fault, ${scheme}`, async () => {
    const { context, page } = await open(PLAIN, { colorScheme: scheme });
    const faults = [];
    for (const [name, path] of Object.entries({ ...PAGES, login: '/login' })) {
      await page.goto(PLAIN + path);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run());
      for (const { id, impact, nodes } of found.violations) {
        if (['serious', 'critical'].includes(impact)) faults.push(`${name}: ${id}: ${nodes.slice(0, 2).map((node) => node.html.slice(0, 120)).join(' | ')}`);
      }
    }
    is(faults, []);
    await context.close();
  });
}

// Rows of tables whose content reaches into the row below.
const coveredRows = () => [...document.querySelectorAll('.rows tbody tr')].filter((row) => {
  const end = Math.max(...[...row.children].map((cell) => cell.getBoundingClientRect().bottom));
  return end > row.getBoundingClientRect().bottom + 1;
}).length;

await check('every page fits every size, in both schemes', async () => {
  mkdirSync(SHOTS, { recursive: true });
  if (PICTURES) mkdirSync(PICTURES, { recursive: true });
  if (PICTURES) {
    const at = (...args) => holdfast('--endpoints', PLAIN_CLIENTS, ...args);
    await at('lock', 'jobs/hourly', '--label', 'cron@web1', '--note', 'rotate', '--', 'sleep', '2');
    await at('freeze', 'jobs/hourly', '--message', 'upgrade');
    await at('thaw', 'jobs/hourly');
    await at('lock', 'jobs/hourly', '--label', 'cron@web2', '--', 'true').catch(() => {});
    const died = spawn(HOLDFAST, ['--endpoints', PLAIN_CLIENTS, 'lock', 'jobs/mail', '--label', 'mailer@web1', '--ttl', '1s', '--', 'sleep', '9']);
    await new Promise((done) => { setTimeout(done, 1_000); });
    died.kill('SIGKILL');
    await new Promise((done) => { setTimeout(done, 2_500); });
  }
  const wide = [];
  for (const scheme of SCHEMES) {
    for (const width of SIZES) {
      const { context, page } = await open(PLAIN, { colorScheme: scheme, viewport: { width, height: 900 } });
      for (const [name, path] of Object.entries({ ...PAGES, login: '/login' })) {
        await page.goto(PLAIN + path);
        if (name !== 'history' && name !== 'login') await page.locator('#live[data-is=on]').waitFor();
        const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        if (over > 0) wide.push(`${name} at ${width}: ${over} px too wide`);
        const covered = await page.evaluate(coveredRows);
        if (covered > 0) wide.push(`${name} at ${width}: ${covered} rows lie over the next one`);
        await page.screenshot({ path: `${SHOTS}/${name}-${scheme}-${width}.png` });
        if (PICTURES && PICTURED.includes(name) && scheme === (name === 'deadlock' ? 'dark' : 'light') && width === 1024) {
          if (name === 'history') await page.goto(`${PLAIN}/history?prefix=jobs/&hours=12`);
          await page.screenshot({ path: `${PICTURES}/${name}.png` });
        }
      }
      await context.close();
    }
  }
  is(wide, []);
});

await check('no browser complained, and none went anywhere else', async () => {
  is(complaints.filter((one) => !/status of (401|403|400|409)/.test(one)), []);
});

await browser.close();
