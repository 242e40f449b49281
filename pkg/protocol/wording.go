package protocol

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

var english = message.NewPrinter(language.English)

// wording says what a keyword of a JSON Schema demands, in the style of package
// commands; for rarer keywords it keeps the validator's message.
func wording(keyword jsonschema.ErrorKind) string {
	switch k := keyword.(type) {
	case *kind.Type:
		return fmt.Sprintf("must be of type %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.MinLength:
		return fmt.Sprintf("is %d characters long; at least %d are required", k.Got, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("is %d characters long; at most %d are allowed", k.Got, k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("has %d entries; at least %d are required", k.Got, k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("has %d entries; at most %d are allowed", k.Got, k.Want)
	case *kind.Minimum:
		return "must be at least " + decimal(k.Want)
	case *kind.Maximum:
		return "must be at most " + decimal(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + decimal(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + decimal(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + decimal(k.Want)
	default:
		return keyword.LocalizedString(english)
	}
}

// decimal writes a number of a schema exactly; they all have finitely many
// digits.
func decimal(number *big.Rat) string {
	digits, _ := number.FloatPrec()
	return number.FloatString(digits)
}
