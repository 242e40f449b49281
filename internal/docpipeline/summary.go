package docpipeline

import (
	"cmp"
	"slices"
	"strings"
)

// maxTopTerms is how many terms a result names.
const maxTopTerms = 8

// Result is the result file of a document, the job's final output.
type Result struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Language string `json:"language"`
	// Words and Chunks count the document's words and chunks.
	Words  int `json:"words"`
	Chunks int `json:"chunks"`
	// TopTerms are its most frequent terms, most frequent first.
	TopTerms []string `json:"top_terms"`
}

// Summarize returns the result of a document.
func Summarize(doc *Embedded) Result {
	counts := make(map[string]int)
	for _, term := range terms(doc.Body) {
		counts[term]++
	}
	ranked := make([]string, 0, len(counts))
	for term := range counts {
		ranked = append(ranked, term)
	}
	slices.SortFunc(ranked, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	return Result{
		Name: doc.Name, Title: doc.Title, Language: doc.Language, Words: len(strings.Fields(doc.Body)),
		Chunks: len(doc.Chunks), TopTerms: ranked[:min(maxTopTerms, len(ranked))],
	}
}
