package tablestore

import "strconv"

// AppendLarge appends text (valid UTF-8) under that name, split over as many
// properties as its size needs: name, name_1, name_2 and so on, each of at most
// [MaxStringUnits] and of whole characters. Empty text is one empty property.
func AppendLarge(properties Properties, name string, text []byte) Properties {
	rest := string(text)
	for i := 0; i == 0 || rest != ""; i++ {
		n := wholeCharacters(rest, MaxStringUnits)
		properties = append(properties, Property{Name: chunkName(name, i), Value: String(rest[:n])})
		rest = rest[n:]
	}
	return properties
}

// wholeCharacters returns the length of the longest prefix of s that has at
// most that many UTF-16 code units and ends between two characters.
func wholeCharacters(s string, units int) int {
	if len(s) <= units { // A character has no more UTF-16 code units than bytes.
		return len(s)
	}
	for i, r := range s {
		if units--; r > 0xFFFF {
			units--
		}
		if units < 0 {
			return i
		}
	}
	return len(s)
}

// Large returns the text that [AppendLarge] stored under that name, or nil if
// there is none.
func Large(properties Properties, name string) []byte {
	if properties.Get(name).Kind() != KindString {
		return nil
	}
	text := []byte{}
	for i := 0; ; i++ {
		chunk := properties.Get(chunkName(name, i))
		if chunk.Kind() != KindString {
			return text
		}
		text = append(text, chunk.String()...)
	}
}

func chunkName(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "_" + strconv.Itoa(i)
}
