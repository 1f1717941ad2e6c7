#!/bin/sh
# The orders of a day, as a shop would export them: a list of lines.
cat > "$HEADWAY_RESULT" <<END
["$1;ada;12.50", "$1;grace;7.00", "a line that is no order", "$1;ada;3.25", "$1;edsger;20.00"]
END
