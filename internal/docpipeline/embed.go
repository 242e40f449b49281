package docpipeline

import (
	"hash/fnv"
	"math"
	"strings"
	"unicode"
)

const (
	dimensions = 1024
	chunkWords = 80
)

// Chunk is a part of a document with its vector.
type Chunk struct {
	Text   string    `json:"text"`
	Vector []float32 `json:"vector"`
}

// Embedded is a document in chunks.
type Embedded struct {
	Text
	Chunks []Chunk `json:"chunks"`
}

// Embed cuts the text into chunks and computes a vector for each.
func Embed(text Text) Embedded {
	words := strings.Fields(text.Body)
	out := Embedded{Text: text}
	for from := 0; from < len(words); from += chunkWords {
		chunk := strings.Join(words[from:min(from+chunkWords, len(words))], " ")
		out.Chunks = append(out.Chunks, Chunk{Text: chunk, Vector: Vector(text.Title + " " + chunk)})
	}
	return out
}

// Vector is a feature-hashed embedding: words and pairs of words are hashed
// into signed buckets, and the sum is scaled to length 1.
func Vector(text string) []float32 {
	vector := make([]float32, dimensions)
	previous := ""
	for _, word := range terms(text) {
		addFeature(vector, word, 1)
		if previous != "" {
			addFeature(vector, previous+" "+word, 0.5)
		}
		previous = word
	}
	var sum float64
	for _, x := range vector {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return vector
	}
	scale := float32(1 / math.Sqrt(sum))
	for i := range vector {
		vector[i] *= scale
	}
	return vector
}

// addFeature adds the weight to the feature's bucket; one bit of the hash is
// the sign, so that collisions cancel out on average.
func addFeature(vector []float32, feature string, weight float32) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(feature)) // A hash takes everything.
	sum := h.Sum64()
	if sum>>63 == 1 {
		weight = -weight
	}
	vector[sum%dimensions] += weight
}

// terms are the words that carry meaning, in lower case and without a plural s.
func terms(text string) []string {
	var out []string
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) }) {
		if len(word) > 3 {
			word = strings.TrimSuffix(word, "s")
		}
		if len(word) > 2 && !stopwords[word] {
			out = append(out, word)
		}
	}
	return out
}

var stopwords = map[string]bool{
	"the": true, "and": true, "that": true, "with": true, "for": true, "are": true, "was": true, "were": true,
	"its": true, "one": true, "from": true, "into": true, "than": true, "there": true, "which": true, "what": true,
	"how": true, "who": true, "they": true, "them": true, "until": true, "each": true, "but": true, "not": true,
}
