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
    nav: [page("Your first worker", "/docs/use/first-worker"), page("Documentation", "/docs/"), page("SDKs", "/sdk/")],
    sidebar: [
      { text: "Use it", link: "/docs/use/", items: [
        page("Your first worker", "/docs/use/first-worker"), page("Words", "/docs/use/words"),
        page("My worker does nothing", "/docs/use/worker-does-nothing"), page("Coming from …", "/docs/use/coming-from"),
        page("Protocols", "/docs/use/protocols"), page("Leases and retries", "/docs/use/leases-and-retries"),
        page("Testing handlers", "/docs/use/testing"), page("SDKs", "/sdk/"), page("Go", "/sdk/go/"),
        page("Python", "/sdk/python/"), page("TypeScript", "/sdk/typescript/"), page("Service Bus", "/docs/use/servicebus"),
        page("Commands", "/docs/use/commands"), page("Guarantees", "/docs/use/guarantees"),
        page("Schedules", "/docs/use/schedules"), page("Check the order", "/docs/use/order"), page("Command line", "/docs/use/cli"),
      ] },
      { text: "Run it", link: "/docs/run/", items: [
        page("Install", "/docs/run/install"), page("Checklist", "/docs/run/production-checklist"), page("Settings", "/docs/run/settings"),
        page("Monitoring", "/docs/run/monitoring"), page("On call", "/docs/run/on-call"),
        page("Backup and upgrade", "/docs/run/backup"), page("Limits", "/docs/run/limits"),
        page("Access", "/docs/run/access"), page("PostgreSQL", "/docs/run/postgres"), page("Azure", "/deploy/azure/"),
        page("Audit", "/docs/run/audit"), page("Performance", "/docs/run/performance"), page("Cost and scale", "/docs/run/scale"),
      ] },
      { text: "Understand it", link: "/docs/understand/", items: [
        page("Architecture", "/docs/understand/architecture"), page("Reliability", "/docs/understand/reliability"),
        page("Model", "/docs/understand/model"), page("Decisions", "/docs/understand/decisions"),
        page("Sources", "/docs/understand/seeds"), page("Contributing", "/CONTRIBUTING"), page("Changelog", "/CHANGELOG"),
      ] },
    ],
  },
};
