// The site has the documents at the places that they have in the repository, so that their
// links lead on in both.
const page = (text, link) => ({ text, link });

// The anchors of headings, as the repository's viewers make them.
const anchor = (title) => title.toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, "").replaceAll(" ", "-");

export default {
  title: "Lucius",
  description: "Carries each command of a document pipeline through its steps, in order.",
  lang: "en",
  head: [["link", { rel: "icon", href: "/icon.svg" }]],
  cleanUrls: true,
  srcExclude: ["testdata/**"],
  rewrites: { "README.md": "index.md", ":folder(.*)/README.md": ":folder/index.md" },
  ignoreDeadLinks: [/LICENSE$/], // It is a file of the site, not a page.
  markdown: { anchor: { slugify: anchor }, toc: { slugify: anchor } },
  vite: { logLevel: "warn" },
  themeConfig: {
    logo: "/icon.svg",
    search: { provider: "local" },
    outline: [2, 3],
    nav: [page("Your first worker", "/docs/first-worker"), page("Documentation", "/docs/"), page("SDKs", "/sdk/")],
    sidebar: [
      { text: "Workers and applications", items: [
        page("Your first worker", "/docs/first-worker"), page("Commands", "/docs/commands"),
        page("Protocols", "/docs/protocols"), page("SDKs", "/sdk/"), page("Go", "/sdk/go/"),
        page("Python", "/sdk/python/"), page("TypeScript", "/sdk/typescript/"), page("Service Bus", "/docs/servicebus"),
      ] },
      { text: "Operation", items: [
        page("Install", "/docs/install"), page("Operations", "/docs/operations"), page("Command line", "/docs/cli"),
        page("Access", "/docs/access"), page("PostgreSQL", "/docs/postgres"), page("Azure", "/deploy/azure/"),
        page("Audit", "/docs/audit"), page("Performance", "/docs/performance"), page("Cost and scale", "/docs/scale"),
      ] },
      { text: "What to rely on", items: [
        page("Guarantees", "/docs/guarantees"), page("Reliability", "/docs/reliability"), page("Model", "/docs/model"),
      ] },
      { text: "Inside", items: [
        page("Architecture", "/docs/architecture"), page("Decisions", "/docs/decisions"), page("Sources", "/docs/seeds"),
        page("Contributing", "/CONTRIBUTING"), page("Changelog", "/CHANGELOG"),
      ] },
    ],
  },
};
