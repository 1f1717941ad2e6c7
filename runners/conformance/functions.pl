# The functions every runner is checked with (`headway runner check`).
use strict;
use warnings;
sub echo    { return $_[0] }
sub add     { return $_[0] + $_[1] }
sub nothing { return undef }
sub hello   { print "hello from the function\n"; return }
sub steps   { headway::progress(1, 2, 'half way'); return }
sub fail    { die "$_[0]\n" }
sub crash   { kill 'KILL', $$ }
