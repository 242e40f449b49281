package docpipeline

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Result is a document's result file.
type Result struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Language string   `json:"language"`
	Chunks   int      `json:"chunks"`
	Terms    []string `json:"top_terms"`
}

// topTerms is how many terms a result names.
const topTerms = 8

// result sums a document up.
func result(doc *Embedded) Result {
	counts := map[string]int{}
	for _, term := range terms(doc.Body) {
		counts[term]++
	}
	names := make([]string, 0, len(counts))
	for term := range counts {
		names = append(names, term)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return Result{
		Name: doc.Name, Title: doc.Title, Language: doc.Language, Chunks: len(doc.Chunks),
		Terms: names[:min(topTerms, len(names))],
	}
}

// Hit is one answer of a search.
type Hit struct {
	Name    string
	Title   string
	Score   float64
	Snippet string
}

// Search returns the k documents of the index that are nearest to the query,
// each by its best chunk, best first.
func Search(indexDir, query string, k int) ([]Hit, error) {
	files, err := filepath.Glob(filepath.Join(indexDir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("search: no index in %s: %w", indexDir, os.ErrNotExist)
	}
	wanted := Vector(query)
	hits := make([]Hit, 0, len(files))
	for _, file := range files {
		var doc Embedded
		if err := readJSON(file, &doc); err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		hits = append(hits, best(&doc, wanted))
	}
	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Name, b.Name))
	})
	return hits[:min(k, len(hits))], nil
}

// best is the document's best chunk for the vector.
func best(doc *Embedded, wanted []float32) Hit {
	hit := Hit{Name: doc.Name, Title: doc.Title, Score: -1}
	for _, chunk := range doc.Chunks {
		var score float64
		for i, x := range chunk.Vector {
			score += float64(x) * float64(wanted[i])
		}
		if score > hit.Score {
			hit.Score, hit.Snippet = score, snippet(chunk.Text)
		}
	}
	return hit
}

// snippet is the beginning of a chunk.
func snippet(text string) string {
	runes := []rune(text)
	if len(runes) <= 90 {
		return text
	}
	return string(runes[:90]) + "…"
}
