package samplepipeline

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// snippetWords is how long a snippet is.
const snippetWords = 16

// ErrNoIndex is returned by a search in a folder that holds no index.
var ErrNoIndex = errors.New("there is no index")

// Hit is one answer of a search: a document, by its best chunk.
type Hit struct {
	Name  string
	Title string
	// Score is the cosine of the angle between query and chunk, 1 at best.
	Score float64
	// Snippet is the passage of the chunk that best matches the query.
	Snippet string
}

// Search returns the k documents of an index that are nearest to the query, best
// first, and omits those that share nothing with it. It reads the whole index, which
// is fine for the demo's few documents.
func Search(indexDir, query string, k int) ([]Hit, error) {
	entries, err := os.ReadDir(indexDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("search: %w in %s", ErrNoIndex, indexDir)
	}
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	wanted := Vector(query)
	var hits []Hit
	indexed := 0
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".json" {
			continue // a file that is being written
		}
		var doc Embedded
		if err := readJSON(indexDir, entry.Name(), &doc); err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		indexed++
		if hit := bestOf(&doc, wanted, query); hit.Score > 0 {
			hits = append(hits, hit)
		}
	}
	if indexed == 0 {
		return nil, fmt.Errorf("search: %w in %s", ErrNoIndex, indexDir)
	}
	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Name, b.Name))
	})
	return hits[:max(0, min(k, len(hits)))], nil
}

// bestOf returns the document's best chunk for the vector of the query.
func bestOf(doc *Embedded, wanted []float32, query string) Hit {
	hit := Hit{Name: doc.Name, Title: doc.Title}
	best := ""
	for _, chunk := range doc.Chunks {
		if score := cosine(chunk.Vector, wanted); score > hit.Score {
			hit.Score, best = score, chunk.Text
		}
	}
	hit.Snippet = snippet(best, query)
	return hit
}

// cosine returns the cosine of the angle between vectors of length 1.
func cosine(a, b []float32) float64 {
	var sum float64
	for i := range min(len(a), len(b)) {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// snippet returns the first run of words with the most different terms of the query,
// with an ellipsis at each end that is cut off.
func snippet(text, query string) string {
	wanted := make(map[string]bool)
	for _, term := range terms(query) {
		wanted[term] = true
	}
	words := strings.Fields(text)
	start, most := 0, 0
	for from := 0; from == 0 || from+snippetWords <= len(words); from++ {
		found := make(map[string]bool)
		for _, term := range terms(strings.Join(words[from:min(from+snippetWords, len(words))], " ")) {
			if wanted[term] {
				found[term] = true
			}
		}
		if len(found) > most {
			start, most = from, len(found)
		}
	}
	end := min(start+snippetWords, len(words))
	cut := strings.Join(words[start:end], " ")
	if start > 0 {
		cut = "… " + cut
	}
	if end < len(words) {
		cut += " …"
	}
	return cut
}
