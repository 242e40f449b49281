// Package samplepipeline is the real work of the demo: three platform services
// that turn documents into a searchable index.
//
//	documents/bees.html
//	   │ extract   title and text out of plain text or HTML
//	   ▼
//	work/text/bees.html.json
//	   │ embed     a feature-hashed vector for each chunk of the text
//	   ▼
//	work/vectors/bees.html.json
//	   │ index     what a search reads, and a result file about the document
//	   ▼
//	work/index/bees.html.json   work/output/bees.html.json
//
// The work itself is pure: [Extract], [Embed] and [Summarize] take and return
// values, and the same input gives the same output on every machine. The
// services around them only read and write files.
//
// A directive may be delivered more than once, even to two workers at the same
// time. So each service writes its file under a temporary name and renames it:
// readers never see a partial file, and repeated work writes the same bytes.
//
// Directives are untrusted input. The operating system ([os.Root]) confines the
// file URIs in them to the folders of the [Workspace], so that no path and no
// symbolic link leads a service to other files.
package samplepipeline
