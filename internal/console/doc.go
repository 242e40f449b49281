// Package console is the web interface for people: pages under /ui/ that show the flow,
// say what needs attention, and offer the action that helps.
//
//	browser ──► Console ──► a page ──► request.api ──► api.Client ──► the API's handler
//	   ▲           │         (Go: reads, decides           in process, with the caller's
//	   │           │          what to say)                 own credential
//	   │           ├ sign-in: a token in an HttpOnly cookie
//	   │           ├ refuses requests of other sites, sets the content security policy
//	   └── html ◄──┘ templates/*.html
//
// The console has no rights and no way to the store: a page calls the public API, through
// the same handler that serves it on the network, with the credential of the browser's
// user. So a page can show and do what its user may and no more; limits, audit records
// and tenants are those of the API.
//
// A page is a [page] in the table of pages.go: it calls the API and returns a [view],
// which a template of the same name renders. A page that is live is rendered again while
// a browser looks at it, by the same function and template, so that there is nothing to add
// for it, and the lines that have changed are sent. All browsers of one caller that look at
// the same URL share these renderings.
//
// An action is an entry of the table of actions.go: a form with what would be changed, a
// reason, and the command that would do the same.
//
// Everything works without script but what is live: script only swaps what a link or a
// form answers into the page. Scripts and styles are embedded; nothing is loaded from
// another server.
package console
