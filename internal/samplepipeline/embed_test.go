package samplepipeline_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

func TestEmbedCutsIntoChunksOfOneLength(t *testing.T) {
	t.Parallel()
	for words, want := range map[int][]int{1: {1}, 79: {79}, 80: {80}, 81: {40, 41}, 200: {66, 67, 67}} {
		var body []string
		for i := range words {
			body = append(body, fmt.Sprintf("word%d", i))
		}
		text := samplepipeline.Text{Title: "t", Body: strings.Join(body, "\n")}
		embedded := samplepipeline.Embed(text)
		var got []int
		var joined []string
		for _, chunk := range embedded.Chunks {
			got = append(got, len(strings.Fields(chunk.Text)))
			joined = append(joined, chunk.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d words (-want +got):\n%s", words, diff)
		}
		if strings.Join(joined, " ") != strings.Join(body, " ") {
			t.Errorf("%d words: some were lost", words)
		}
		if embedded.Text != text {
			t.Errorf("%d words: the text has changed", words)
		}
	}
}

func length(vector []float32) float64 {
	var sum float64
	for _, x := range vector {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum)
}

func similarity(a, b string) float64 {
	va, vb := samplepipeline.Vector(a), samplepipeline.Vector(b)
	var sum float64
	for i := range va {
		sum += float64(va[i]) * float64(vb[i])
	}
	return sum
}

func TestVectorsHaveLengthOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"lighthouse", "the lamp of the lighthouse", "Ölmühle", "日本の灯台", "520", strings.Repeat("lamp ", 5000)} {
		vector := samplepipeline.Vector(text)
		if len(vector) != 512 || math.Abs(length(vector)-1) > 1e-6 {
			t.Errorf("%.20q: %d numbers of length %v", text, len(vector), length(vector))
		}
	}
}

func TestTheVectorOfNothingIsZero(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "of the and", "a b c", "!?"} {
		if got := length(samplepipeline.Vector(text)); got != 0 {
			t.Errorf("%q has length %v", text, got)
		}
	}
}

// The FNV-1a hash of "lamp" is fixed, so an index written by one machine can be searched by
// another.
func TestVectorsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	got := map[int]float32{}
	for i, x := range samplepipeline.Vector("lamp") {
		if x != 0 {
			got[i] = x
		}
	}
	// The term (1) and its part "lamp" (0.25) share a hash, its parts "^lam" and
	// "amp$" have a negative one; the length was 1.299038.
	want := map[int]float32{123: 0.96225047, 263: -0.19245009, 317: -0.19245009}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("vector (-want +got):\n%s", diff)
	}
}

func TestSimilarTextsAreNear(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, near, far string }{
		{"ships see the lamp", "a lamp for ships", "a loaf of bread"},
		{"the keeper of bees", "beekeeper", "printing press"},
		{"lighthouses", "lighthouse", "library"},
		{"Café", "café", "cave"},
		{"red ship sees lamp", "red ship", "ship red"},
	} {
		near, far := similarity(test.text, test.near), similarity(test.text, test.far)
		if near <= far {
			t.Errorf("%q is as near to %q (%.3f) as to %q (%.3f)", test.text, test.far, far, test.near, near)
		}
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	doc := samplepipeline.Embed(samplepipeline.Text{
		Name: "a.txt", Title: "Staffs", Language: "en",
		Body: "The staff of the train. The trains and the staffs, the line, the staff.\nGlass is glass.",
	})
	want := samplepipeline.Result{
		Name: "a.txt", Title: "Staffs", Language: "en", Words: 17, Chunks: 1,
		TopTerms: []string{"staff", "glass", "train", "line"},
	}
	if diff := cmp.Diff(want, samplepipeline.Summarize(&doc)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestSummarizeNamesFewTerms(t *testing.T) {
	t.Parallel()
	doc := samplepipeline.Embed(samplepipeline.Text{Body: "one1 two2 thr3 fou4 fiv5 six6 sev7 eig8 nin9 ten10"})
	if terms := samplepipeline.Summarize(&doc).TopTerms; len(terms) != 8 {
		t.Errorf("%d terms: %v", len(terms), terms)
	}
}
