import pytest
import torch._inductor.config as inductor

from vit.errors import UserError
from vit.training.compiling import check_compiler


def test_without_a_compiler_one_line_says_so(make_data, make_model, make_trainer) -> None:
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        check_compiler("cuda")
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler, and none was found") as error:
            make_trainer(max_epochs=1).fit(make_model(compile=True), make_data())
        assert "\n" not in str(error.value)
        make_trainer(max_steps=1).fit(make_model(), make_data())
